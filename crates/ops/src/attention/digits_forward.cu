// Attention forward in digits. A block owns 64 queries, each of its 4 warps 16 of them, and streams keys and values in blocks of 64.

constexpr int OWN = 64, THREADS = 128;
constexpr int KEYS = DIGITS * 64 * DP, VALUES = DIGITS * 64 * VP, STAGE = KEYS + VALUES + 64 * 4 + VP * 4;

// Scores, weights and results of a warp have its lanes (g, t), 8 by 4: rows g and g + 8 of columns 2 t and 2 t + 1 of every 8.
// Per score: about 40 instructions, 4 of them of tensor cores. Keys and values are double buffered.
extern "C" __global__ void __launch_bounds__(THREADS, DITTO_BLOCKS)
attention_digits_forward(const float* __restrict__ q, const u8* __restrict__ k, const float* __restrict__ k_scales,
                         const u8* __restrict__ v, const float* __restrict__ v_scales, const float* __restrict__ mask, float* __restrict__ o,
                         float* __restrict__ logs, float* __restrict__ tops, unsigned batch, unsigned group, unsigned n, unsigned m, unsigned causal,
                         float factor, MaskView view, Inside inside) {
    extern __shared__ __align__(128) u8 memory[];
    const unsigned at = shared_address(memory);
    // From a shuffle, so that the compiler knows it to be one for all lanes.
    const int warp = __shfl_sync(ALL, threadIdx.x >> 5, 0), g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;
    // The scale of weights. From a shuffle, so that it stays in a register.
    const Power one(__shfl_sync(ALL, power(1 - BITS + LEFT_OUT), 0));
    const unsigned rows = group * n, tiles = (rows + OWN - 1) / OWN, key_blocks = (m + 63) / 64;
    for (u64 work = blockIdx.x; work < (u64)tiles * batch; work += gridDim.x) {
        // The last tiles are the longest under a causal mask; they go first.
        const unsigned tile = tiles - 1 - (unsigned)(work / batch);
        const u64 z = work % batch;
        const unsigned r0 = tile * OWN;
        const int count = rows - r0 < OWN ? (int)(rows - r0) : OWN;
        const int mine = count - warp * 16 < 16 ? count - warp * 16 : 16;  // this warp's rows
        int low, high, warp_low = 0, warp_high = -1;
        query_range(n, r0, count, low, high);
        if (mine > 0) query_range(n, r0 + warp * 16, mine, warp_low, warp_high);
        const int keys = causal && high + 1 < (int)m ? high + 1 : (int)m;

        auto fetch = [&](int block, int stage) {
            const u64 from = z * key_blocks + block;
            const unsigned to = at + stage * STAGE;
            copy<KEYS, THREADS>(to, k + from * KEYS);
            copy<VALUES, THREADS>(to + KEYS, v + from * VALUES);
            copy<64 * 4, THREADS>(to + KEYS + VALUES, k_scales + from * 64);
            copy<VP * 4, THREADS>(to + KEYS + VALUES + 64 * 4, v_scales + from * VP);
            copy_commit();
        };
        fetch(0, 0);
        Left<DP> queries;
        const float* from[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const unsigned row = r0 + warp * 16 + g + 8 * r;
#if DITTO_INSIDE
            from[r] = row < rows ? q + list_at<D>(z, n, inside.heads, inside.wide) + (u64)row * inside.wide : nullptr;
#else
            from[r] = row < rows ? q + (z * rows + row) * D : nullptr;
#endif
        }
        const float2 down = queries.convert<D>(from);
        const RowScales scales(down.x, down.y);

        float acc[VP / 8][4], top[2], total[2];
        int query[2];
        u64 masks[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const unsigned row = r0 + warp * 16 + g + 8 * r;
            query[r] = query_of(row, n);
            masks[r] = DITTO_MASK && row < rows ? mask_at(view, z, group, n, row) : 0;
            top[r] = -__int_as_float(0x7f800000);
            total[r] = 0.0f;
        }
#pragma unroll
        for (int c = 0; c < VP / 8; ++c)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[c][i] = 0.0f;

#pragma unroll 1
        for (int j0 = 0, stage = 0; j0 < keys; j0 += 64, stage ^= 1) {
            copy_wait<0>();
            __syncthreads();
            // The other buffer was last read before the barrier.
            if (j0 + 64 < keys) fetch(j0 / 64 + 1, stage ^ 1);
            if (mine <= 0 || (causal && j0 > warp_high)) continue;
            const unsigned tile_k = at + stage * STAGE, tile_v = tile_k + KEYS;
            const float* const columns = reinterpret_cast<const float*>(memory + stage * STAGE + KEYS + VALUES) + 2 * t;

            float s[8][4];
#pragma unroll
            for (int f = 0; f < 8; f += 2) {
                Sums sums;
                sums.multiply<DP, 64 * DP, true>(queries, tile_k, f * 8);
                scales.finish(s[f], s[f + 1], sums, columns + f * 8);
            }
#ifdef DITTO_FLIP
#pragma unroll
            for (int f = 0; f < 8; ++f)
#pragma unroll
                for (int i = 0; i < 4; ++i) s[f][i] = -s[f][i];
#endif
            const bool some = DITTO_MASK || j0 + 64 > (int)m || (causal && j0 + 64 > warp_low + 1);
            bool open[2] = {true, true};
            if (some) {
                unsigned any[2] = {0, 0};
#pragma unroll
                for (int f = 0; f < 8; ++f)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int key = j0 + 8 * f + 2 * t + i % 2;
                        bool ok = key < (int)m && (!causal || key <= query[i / 2]);
                        if (DITTO_MASK && ok && warp * 16 + g + i / 2 * 8 < count) ok = fabsf(mask[masks[i / 2] + key * view.column]) > 0.0f;
                        // Its weight is exactly 0 beside an open key.
                        if (!ok) s[f][i] = -__int_as_float(0x7f800000);
                        any[i / 2] |= ok ? 1u : 0u;
                    }
                // In lists without a mask that are one head each, a row of an active warp has an open key.
                if (!DITTO_INSIDE)
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        any[r] |= __shfl_xor_sync(ALL, any[r], 2);
                        open[r] = any[r] | __shfl_xor_sync(ALL, any[r], 1);
                    }
            }
            float keep[2], take[2];
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float best = -__int_as_float(0x7f800000);
#pragma unroll
                for (int f = 0; f < 8; ++f) best = fmaxf(best, fmaxf(s[f][2 * r], s[f][2 * r + 1]));
                best = fmaxf(best, __shfl_xor_sync(ALL, best, 2));
                best = fmaxf(best, __shfl_xor_sync(ALL, best, 1));
                best = __fadd_rn(best, 0.0f);
                const float next = best > top[r] ? best : top[r];
                keep[r] = weight_below_one(__fmul_rn(__fsub_rn(top[r], next), factor));
                take[r] = weight_below_one(__fmul_rn(__fsub_rn(best, next), factor));
                top[r] = next;
                float sum = 0.0f;
#pragma unroll
                for (int f = 0; f < 8; ++f)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        s[f][2 * r + e] = weight_below_one(__fmul_rn(__fsub_rn(s[f][2 * r + e], best), factor));
                        sum = __fadd_rn(sum, s[f][2 * r + e]);
                    }
                sum = __fadd_rn(sum, __shfl_xor_sync(ALL, sum, 2));
                sum = __fadd_rn(sum, __shfl_xor_sync(ALL, sum, 1));
                const float next_total = __fmaf_rn(total[r], keep[r], __fmul_rn(sum, take[r]));
                total[r] = DITTO_INSIDE || open[r] ? next_total : total[r];
            }
            // The largest weight of a row is 1, so its exponent is too. A row with a NaN needs no digits, since its sum is NaN.
            Left<64> weights;
            split_rows(weights, s, power(BITS - 1), power(BITS - 1));
#pragma unroll
            for (int c = 0; c < VP / 8; c += 2) {
                Sums sums;
                sums.multiply<64, 64 * VP, true>(weights, tile_v, c * 8);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float2 scale = *reinterpret_cast<const float2*>(columns + 64 + (c + h) * 8);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const float r = __fmul_rn(sums.rounded(h, i, one.times, one.bits), i % 2 ? scale.y : scale.x);
                        const float x = __fmaf_rn(r, take[i / 2], __fmul_rn(acc[c + h][i], keep[i / 2]));
                        acc[c + h][i] = DITTO_INSIDE || open[i / 2] ? x : acc[c + h][i];
                    }
                }
            }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = warp * 16 + g + 8 * r;
            if (row >= count) continue;
            const bool empty = total[r] == 0.0f;
            const float inverse = __fdiv_rn(1.0f, total[r]);
#if DITTO_INSIDE
            float* const out = o + list_at<DV>(z, n, inside.heads, inside.narrow) + (u64)(r0 + row) * inside.narrow;
#else
            float* const out = o + (z * rows + r0 + row) * DV;
#endif
#pragma unroll
            for (int c = 0; c < VP / 8; ++c) {
                const float x = empty ? 0.0f : __fmul_rn(acc[c][2 * r], inverse), y = empty ? 0.0f : __fmul_rn(acc[c][2 * r + 1], inverse);
                store_pair<DV>(out, 8 * c + 2 * t, x, y);
            }
            if (t == 0) {
                const u64 at = z * rows + r0 + row;
                logs[at] = empty ? 0.0f : __fmul_rn(ditto_log(total[r]), LOG2E);
                // NaN where the sum is.
                tops[at] = empty ? 0.0f : total[r] == total[r] ? top[r] : total[r];
            }
        }
        __syncthreads();
    }
}
