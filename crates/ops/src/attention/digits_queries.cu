// Attention backward in digits: dq. A block owns 64 queries, each of its 4 warps 16 of them, and streams keys and values in blocks of 64. Scores and
// slopes are made once more: to hand them over from the blocks that own keys, which have to add to dq in order, takes longer.

constexpr int OWN = 64, THREADS = 128;
constexpr int ROWS = DIGITS * 64 * DP, VALUES = DIGITS * 64 * VP;

// Shared memory, in bytes: tiles of the block's own queries and gradients and of a block of keys, then scales.
constexpr int TILES = DITTO_SHARE ? (ROWS > VALUES ? ROWS : VALUES) : 3 * ROWS + 2 * VALUES;
constexpr int OWN_Q = 0, OWN_G = OWN_Q + ROWS, K_ROWS = OWN_G + VALUES, V_ROWS = K_ROWS + ROWS, K_COLUMNS = V_ROWS + VALUES;
constexpr int K_SCALES = TILES, V_SCALES = K_SCALES + 256, K_COLUMN_SCALES = V_SCALES + 256;

// The digits of keys, by rows and by columns, and of queries, values and gradients by rows; see Part.
struct Digits {
    const u8 *q_rows, *k_rows, *k_columns, *v_rows, *g_rows;
    const float *q_scales, *k_scales, *k_column_scales, *v_scales, *g_scales;
};

// Lane (g, t) has queries g and g + 8 of its warp's 16, and keys 2 t and 2 t + 1 of every 8.
extern "C" __global__ void __launch_bounds__(THREADS, DITTO_BLOCKS)
attention_digits_queries(const __grid_constant__ Digits digits, const float* __restrict__ mask, const float* __restrict__ logs,
                         const float* __restrict__ tops, const float* __restrict__ delta, float* __restrict__ dq, unsigned batch,
                         unsigned group, unsigned n, unsigned m, unsigned causal, float factor, float scale, MaskView view, Inside inside) {
    extern __shared__ __align__(128) u8 memory[];
    const unsigned at = shared_address(memory);
    auto floats = [&](int place) { return reinterpret_cast<const float*>(memory + place); };
    // From a shuffle, so that the compiler knows it to be one for all lanes.
    const int warp = __shfl_sync(ALL, threadIdx.x >> 5, 0), g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;
    const unsigned rows = group * n, tiles = (rows + OWN - 1) / OWN, key_blocks = (m + 63) / 64;
    for (u64 work = blockIdx.x; work < (u64)tiles * batch; work += gridDim.x) {
        // The last tiles are the longest under a causal mask; they go first.
        const unsigned tile = tiles - 1 - (unsigned)(work / batch);
        const u64 z = work % batch, own = z * tiles + tile;
        const unsigned r0 = tile * OWN;
        const int count = rows - r0 < OWN ? (int)(rows - r0) : OWN;
        int low, high;
        query_range(n, r0, count, low, high);
        const int keys = causal && high + 1 < (int)m ? high + 1 : (int)m;

        auto fetch = [&](int block) {
            const u64 from = z * key_blocks + block;
            if (!DITTO_SHARE) {
                copy<ROWS, THREADS>(at + K_ROWS, digits.k_rows + from * ROWS);
                copy<VALUES, THREADS>(at + V_ROWS, digits.v_rows + from * VALUES);
            }
            copy<256, THREADS>(at + K_SCALES, digits.k_scales + from * 64);
            copy<256, THREADS>(at + V_SCALES, digits.v_scales + from * 64);
        };
        if (!DITTO_SHARE) {
            copy<ROWS, THREADS>(at + OWN_Q, digits.q_rows + own * ROWS);
            copy<VALUES, THREADS>(at + OWN_G, digits.g_rows + own * VALUES);
        }
        fetch(0);
        copy_commit();

        float aq[DP / 8][4], q_scale[2], g_scale[2], top[2], less[2], mean[2];
        int query[2];
        u64 masks[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const unsigned place = warp * 16 + g + 8 * r, row = r0 + place;
            query[r] = query_of(row, n);
            masks[r] = DITTO_MASK && row < rows ? mask_at(view, z, group, n, row) : 0;
            q_scale[r] = digits.q_scales[own * 64 + place];
            g_scale[r] = digits.g_scales[own * 64 + place];
            const u64 stat = z * rows + row;
            less[r] = row < rows ? -logs[stat] : 0.0f;
            top[r] = row < rows ? tops[stat] : 0.0f;
            mean[r] = row < rows ? delta[stat] : 0.0f;
        }
#pragma unroll
        for (int c = 0; c < DP / 8; ++c)
#pragma unroll
            for (int i = 0; i < 4; ++i) aq[c][i] = 0.0f;

#pragma unroll 1
        for (int j0 = 0; j0 < keys; j0 += 64) {
            const u64 from = z * key_blocks + j0 / 64;
            copy_wait<0>();
            __syncthreads();
            if (!DITTO_SHARE) copy<ROWS, THREADS>(at + K_COLUMNS, digits.k_columns + from * ROWS);
            copy<DP * 4, THREADS>(at + K_COLUMN_SCALES, digits.k_column_scales + from * DP);
            copy_commit();
            float p[8][4];
            {
                const RowScales scales(q_scale[0], q_scale[1]);
                const LeftTile<DP> queries(tile_at<ROWS, THREADS>(at, OWN_Q, digits.q_rows + own * ROWS), warp * 16);
                const unsigned tile_k = tile_at<ROWS, THREADS>(at, K_ROWS, digits.k_rows + from * ROWS);
#pragma unroll
                for (int f = 0; f < 8; f += 2) {
                    Sums sums;
                    sums.multiply<DP, 64 * DP, false>(queries, tile_k, f * 8);
                    scales.finish(p[f], p[f + 1], sums, floats(K_SCALES) + f * 8 + 2 * t);
#pragma unroll
                    for (int h = 0; h < 2; ++h)
#pragma unroll
                        for (int i = 0; i < 4; ++i) p[f + h][i] = weight(__fmaf_rn(__fsub_rn(SCORE(p[f + h][i]), top[i / 2]), factor, less[i / 2]));
                }
            }
            {
                const RowScales scales(g_scale[0], g_scale[1]);
                const LeftTile<VP> gradients(tile_at<VALUES, THREADS>(at, OWN_G, digits.g_rows + own * VALUES), warp * 16);
                const unsigned tile_v = tile_at<VALUES, THREADS>(at, V_ROWS, digits.v_rows + from * VALUES);
#pragma unroll
                for (int f = 0; f < 8; f += 2) {
                    Sums sums;
                    sums.multiply<VP, 64 * VP, false>(gradients, tile_v, f * 8);
                    float slope[2][4];
                    scales.finish(slope[0], slope[1], sums, floats(V_SCALES) + f * 8 + 2 * t);
#pragma unroll
                    for (int h = 0; h < 2; ++h)
#pragma unroll
                        for (int i = 0; i < 4; ++i) p[f + h][i] = __fmul_rn(p[f + h][i], __fsub_rn(slope[h][i], mean[i / 2]));
                }
            }
            if (DITTO_MASK || j0 + 64 > (int)m || (causal && j0 + 63 > low)) {
                // A blocked pair has no slope.
#pragma unroll
                for (int f = 0; f < 8; ++f)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int key = j0 + 8 * f + 2 * t + i % 2;
                        bool ok = key < (int)m && (!causal || key <= query[i / 2]);
                        if (DITTO_MASK && ok && warp * 16 + g + i / 2 * 8 < count) ok = fabsf(mask[masks[i / 2] + key * view.column]) > 0.0f;
                        p[f][i] = ok ? p[f][i] : 0.0f;
                    }
            }
            copy_wait<0>();
            __syncthreads();
            // All warps are done with what the next block of keys replaces.
            if (j0 + 64 < keys) fetch(j0 / 64 + 1);
            copy_commit();
            Rows(p).accumulate<DP>(aq, tile_at<ROWS, THREADS>(at, K_COLUMNS, digits.k_columns + from * ROWS), floats(K_COLUMN_SCALES) + 2 * t);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = warp * 16 + g + 8 * r;
            if (row >= count) continue;
#if DITTO_INSIDE
            float* const out = dq + list_at<D>(z, n, inside.heads, inside.wide) + (u64)(r0 + row) * inside.wide;
#else
            float* const out = dq + (z * rows + r0 + row) * D;
#endif
#pragma unroll
            for (int c = 0; c < DP / 8; ++c) store_pair<D>(out, 8 * c + 2 * t, __fmul_rn(aq[c][2 * r], scale), __fmul_rn(aq[c][2 * r + 1], scale));
        }
        copy_wait<0>();
        __syncthreads();
    }
}
