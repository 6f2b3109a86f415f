// Attention forward: blocks own queries and stream keys and values.

constexpr int NB = BLOCK / 4, PP = BLOCK + 4;

// One block of keys of the online softmax: scores become weights, which are stored at p, and what there is so far
// is rescaled. With `some`, blocked pairs stay as they are and count as nothing.
__device__ __forceinline__ void soften(bool some, float (&s)[TR][NB], const unsigned (&open)[TR], float (&top)[TR], float (&total)[TR],
                                       float (&acc)[TR][4 * NCV], float* p, float factor) {
#pragma unroll
    for (int i = 0; i < TR; ++i) {
        float best = -__int_as_float(0x7f800000), other;
#pragma unroll
        for (int j = 0; j < NB; ++j) best = s[i][j] > best ? s[i][j] : best;
        other = __shfl_xor_sync(ALL, best, FAR);
        best = other > best ? other : best;
        other = __shfl_xor_sync(ALL, best, NEAR);
        best = other > best ? other : best;
        best = __fadd_rn(best, 0.0f);
        const float next = best > top[i] ? best : top[i];
        float keep = weight(__fmul_rn(__fsub_rn(top[i], next), factor));
        keep = open[i] ? keep : 1.0f;
        top[i] = next;
        float w[NB], sum = 0.0f;
#pragma unroll
        for (int j = 0; j < NB; ++j) w[j] = weight(__fmul_rn(__fsub_rn(s[i][j], next), factor));
        if (some)
#pragma unroll
            for (int j = 0; j < NB; ++j) w[j] = is_blocked(s[i][j]) ? 0.0f : w[j];
#pragma unroll
        for (int j = 0; j < NB; ++j) {
            sum = __fadd_rn(sum, w[j]);
#if !DITTO_TF32
            p[i * 8 * PP + 4 * j] = w[j];
#endif
        }
        if (!DITTO_TF32 && some)
#pragma unroll
            for (int j = 0; j < NB; ++j)
                if (is_blocked(s[i][j])) p[i * 8 * PP + 4 * j] = s[i][j];
#if DITTO_TF32
#pragma unroll
        for (int j = 0; j < NB; ++j) s[i][j] = w[j];
#endif
        sum = __fadd_rn(sum, __shfl_xor_sync(ALL, sum, FAR));
        sum = __fadd_rn(sum, __shfl_xor_sync(ALL, sum, NEAR));
        total[i] = __fmaf_rn(total[i], keep, sum);
#pragma unroll
        for (int c = 0; c < 4 * NCV; ++c) acc[i][c] = __fmul_rn(acc[i][c], keep);
    }
}

// Forward. Per block and 64 keys: 2 * OWN * 64 * 64 fused multiply-adds (D = DV = 64), OWN * 64 exponentials;
// 32 KB of keys and values from the second-level cache. Values are on their way while scores are made, the next
// keys while weights meet values.
extern "C" __global__ void __launch_bounds__(THREADS, DITTO_BLOCKS)
attention_forward(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, const float* __restrict__ mask,
                  float* __restrict__ o, float* __restrict__ logs, float* __restrict__ tops, unsigned batch, unsigned group, unsigned n, unsigned m, unsigned causal,
                  float factor, MaskView view, Inside inside) {
    extern __shared__ float4 memory[];
    float* const sq = reinterpret_cast<float*>(memory);
    float* const sk = sq + OWN * PD;
    float* const sv = DITTO_SHARE ? sk : sk + BLOCK * PD;
    float* const sp = DITTO_SHARE ? sk + BLOCK * (PD > PV ? PD : PV) : sv + BLOCK * PV;
    // From a shuffle, so that the compiler knows it to be one for all lanes.
    const int warp = __shfl_sync(ALL, threadIdx.x >> 5, 0), lm = lane_m(), ln = lane_n();
    const int own0 = warp * 8 * TR;
    const unsigned rows = group * n, tiles = (rows + OWN - 1) / OWN;
    for (u64 work = blockIdx.x; work < (u64)tiles * batch; work += gridDim.x) {
        // The last tiles are the longest under a causal mask; they go first.
        const unsigned tile = tiles - 1 - (unsigned)(work / batch);
        const u64 z = work % batch;
        const unsigned r0 = tile * OWN;
        const int count = rows - r0 < OWN ? (int)(rows - r0) : OWN;
        const u64 row0 = z * rows + r0;
#if DITTO_INSIDE
        const u64 list = list_at<D>(z, n, inside.heads, inside.wide);
        auto query_at = [&](int r) { return list + (u64)(r0 + r) * inside.wide; };
        auto key_at = [&](int j) { return list + (u64)(unsigned)j * inside.wide; };
        auto value_at = key_at;
        auto out_at = [&](int r) { return list_at<DV>(z, n, inside.heads, inside.narrow) + (u64)(r0 + r) * inside.narrow; };
#else
        auto query_at = [&](int r) { return (row0 + r) * D; };
        auto key_at = [&](int j) { return (z * m + j) * D; };
        auto value_at = [&](int j) { return (z * m + j) * DV; };
        auto out_at = [&](int r) { return (row0 + r) * DV; };
#endif
        int low, high, warp_low = 0, warp_high = -1;
        query_range(n, r0, count, low, high);
        const int mine = count - own0 < 8 * TR ? count - own0 : 8 * TR;  // this warp's rows
        if (mine > 0) query_range(n, r0 + own0, mine, warp_low, warp_high);
        const int keys = causal && high + 1 < (int)m ? high + 1 : (int)m;

        float acc[TR][4 * NCV], top[TR], total[TR];
        int query[TR];
        u64 at[TR];
#pragma unroll
        for (int i = 0; i < TR; ++i) {
            const unsigned r = r0 + own0 + lm + 8 * i;
            query[i] = query_of(r, n);
            at[i] = DITTO_MASK && r < rows ? mask_at(view, z, group, n, r) : 0;
            top[i] = -__int_as_float(0x7f800000);
            total[i] = 0.0f;
#pragma unroll
            for (int c = 0; c < 4 * NCV; ++c) acc[i][c] = 0.0f;
        }
        copy_rows<D, PD, OWN>(sq, q + query_at(0), inside.wide, count);
        if (keys > 0) copy_rows<D, PD, BLOCK>(sk, k + key_at(0), inside.wide, (int)m < BLOCK ? (int)m : BLOCK);
        copy_commit();
        for (int j0 = 0; j0 < keys; j0 += BLOCK) {
            const int here = (int)m - j0 < BLOCK ? (int)m - j0 : BLOCK;
            copy_wait<0>();
            __syncthreads();
            if (!DITTO_SHARE) {
                copy_rows<DV, PV, BLOCK>(sv, v + value_at(j0), inside.wide, here);
                copy_commit();
            }
            const bool active = mine > 0 && (!causal || j0 <= warp_high);
            const bool some = DITTO_MASK || here < BLOCK || (causal && j0 + BLOCK > warp_low + 1);
            float s[TR][NB];
            if (active) {
                products<D, PD, NB>(s, sq + (own0 + lm) * PD, sk);
#pragma unroll
                for (int i = 0; i < TR; ++i)
#pragma unroll
                    for (int j = 0; j < NB; ++j) s[i][j] = SCORE(s[i][j]);
                unsigned open[TR];
#pragma unroll
                for (int i = 0; i < TR; ++i) open[i] = some ? 0u : 1u;
                if (some) {
#pragma unroll
                    for (int i = 0; i < TR; ++i) {
                        const bool row = own0 + lm + 8 * i < count;
#pragma unroll
                        for (int j = 0; j < NB; ++j) {
                            const int key = j0 + streamed(ln, j);
                            bool ok = key < (int)m && (!causal || key <= query[i]);
                            if (DITTO_MASK && ok && row) ok = fabsf(mask[at[i] + key * view.column]) > 0.0f;
                            if (!ok) s[i][j] = __uint_as_float(BLOCKED);
                            open[i] |= ok ? 1u : 0u;
                        }
                        open[i] |= __shfl_xor_sync(ALL, open[i], FAR);
                        open[i] |= __shfl_xor_sync(ALL, open[i], NEAR);
                    }
                }
                float* const p = sp + (own0 + lm) * PP + ln;
                soften(some, s, open, top, total, acc, p, factor);
            }
            if (DITTO_SHARE) {
                __syncthreads();
                copy_rows<DV, PV, BLOCK>(sv, v + value_at(j0), inside.wide, here);
                copy_commit();
            }
            copy_wait<0>();
            __syncthreads();
            const int next0 = j0 + BLOCK;
            if (!DITTO_SHARE && next0 < keys) copy_rows<D, PD, BLOCK>(sk, k + key_at(next0), inside.wide, (int)m - next0 < BLOCK ? (int)m - next0 : BLOCK);
            copy_commit();
            if (active) {
#if DITTO_TF32
                accumulate<PV, NCV, NB>(acc, s, sv);
#else
                const float* const p = sp + (own0 + lm) * PP;
                accumulate<PV, NCV, BLOCK, PP>(some, acc, p, sv + 4 * ln);
#endif
            }
            if (DITTO_SHARE && next0 < keys) {
                __syncthreads();
                copy_rows<D, PD, BLOCK>(sk, k + key_at(next0), inside.wide, (int)m - next0 < BLOCK ? (int)m - next0 : BLOCK);
                copy_commit();
            }
        }
#pragma unroll
        for (int i = 0; i < TR; ++i) {
            const int r = own0 + lm + 8 * i;
            if (r < count) {
                const bool empty = total[i] == 0.0f;
                const float inverse = __fdiv_rn(1.0f, total[i]);
#pragma unroll
                for (int c = 0; c < 4 * NCV; ++c) acc[i][c] = empty ? 0.0f : __fmul_rn(acc[i][c], inverse);
                store_row<DV, NCV>(o + out_at(r), acc[i], ln);
                if (ln == 0) {
                    logs[row0 + r] = empty ? 0.0f : __fmul_rn(ditto_log(total[i]), LOG2E);
                    // NaN where the sum is.
                    tops[row0 + r] = empty ? 0.0f : total[i] == total[i] ? top[i] : total[i];
                }
            }
        }
        copy_wait<0>();
        __syncthreads();
    }
}
