// Attention backward in digits: dk and dv. A block owns 64 keys and values, each of its 4 warps 16 of them, and streams queries in blocks of
// 64, the last ones first.

constexpr int OWN = 64, THREADS = 128;
constexpr int ROWS = DIGITS * 64 * DP, VALUES = DIGITS * 64 * VP;

// Shared memory, in bytes: tiles of the block's own keys and values and of a block of queries, then scales and what there is per row.
constexpr int TILES = DITTO_SHARE ? (ROWS > VALUES ? ROWS : VALUES) : 3 * ROWS + 3 * VALUES;
constexpr int OWN_K = 0, OWN_V = OWN_K + ROWS, Q_ROWS = OWN_V + VALUES, G_ROWS = Q_ROWS + ROWS, G_COLUMNS = G_ROWS + VALUES, Q_COLUMNS = G_COLUMNS + VALUES;
constexpr int Q_SCALES = TILES, G_SCALES = Q_SCALES + 256, G_COLUMN_SCALES = G_SCALES + 256, Q_COLUMN_SCALES = G_COLUMN_SCALES + VP * 4;
constexpr int LOGS = Q_COLUMN_SCALES + DP * 4, TOPS = LOGS + 256, DELTAS = TOPS + 256, MASKS = DELTAS + 256;

// The digits of queries and gradients, by rows and by columns, and of keys and values by rows; see Part.
struct Digits {
    const u8 *q_rows, *q_columns, *k_rows, *v_rows, *g_rows, *g_columns;
    const float *q_scales, *q_column_scales, *k_scales, *v_scales, *g_scales, *g_column_scales;
};

// Rows are keys: lane (g, t) has keys g and g + 8 of its warp's 16, and queries 2 t and 2 t + 1 of every 8.
extern "C" __global__ void __launch_bounds__(THREADS, DITTO_BLOCKS)
attention_digits_keys(const __grid_constant__ Digits digits, const float* __restrict__ mask, const float* __restrict__ logs,
                      const float* __restrict__ tops, const float* __restrict__ delta, float* __restrict__ dk, float* __restrict__ dv,
                      unsigned batch, unsigned group, unsigned n, unsigned m, unsigned causal, float factor, float scale, MaskView view,
                      Inside inside) {
    extern __shared__ __align__(128) u8 memory[];
    const unsigned at = shared_address(memory);
    auto floats = [&](int place) { return reinterpret_cast<float*>(memory + place); };
    u64* const smask = reinterpret_cast<u64*>(memory + MASKS);
    // From a shuffle, so that the compiler knows it to be one for all lanes.
    const int warp = __shfl_sync(ALL, threadIdx.x >> 5, 0), g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;
    const int rows = (int)(group * n), blocks = (rows + 63) / 64;
    const unsigned tiles = (m + OWN - 1) / OWN;
    for (u64 work = blockIdx.x; work < (u64)tiles * batch; work += gridDim.x) {
        // The first keys have the most queries under a causal mask.
        const unsigned tile = (unsigned)(work / batch);
        const u64 z = work % batch;
        const int o0 = (int)(tile * OWN), key0 = o0 + warp * 16 + g;

        // The first block of queries, from `block` down, that is not blocked as a whole.
        auto skip = [&](int block) {
            for (; block >= 0 && causal; --block) {
                int low, high;
                query_range(n, block * 64, rows - block * 64 < 64 ? rows - block * 64 : 64, low, high);
                if (high >= o0) break;
            }
            return block;
        };
        auto fetch = [&](int block) {
            const u64 from = z * blocks + block;
            if (!DITTO_SHARE) {
                copy<ROWS, THREADS>(at + Q_ROWS, digits.q_rows + from * ROWS);
                copy<VALUES, THREADS>(at + G_ROWS, digits.g_rows + from * VALUES);
                copy<VALUES, THREADS>(at + G_COLUMNS, digits.g_columns + from * VALUES);
            }
            copy<256, THREADS>(at + Q_SCALES, digits.q_scales + from * 64);
            copy<256, THREADS>(at + G_SCALES, digits.g_scales + from * 64);
            copy<VP * 4, THREADS>(at + G_COLUMN_SCALES, digits.g_column_scales + from * VP);
            if (threadIdx.x < 64) {
                const int row = block * 64 + threadIdx.x, in = row < rows ? 4 : 0;
                const u64 place = z * rows + (in ? row : 0);
                auto one = [&](int to, const float* x) {
                    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at + to + threadIdx.x * 4), "l"(x + place), "r"(in) : "memory");
                };
                one(LOGS, logs);
                one(TOPS, tops);
                one(DELTAS, delta);
                if (DITTO_MASK) smask[threadIdx.x] = in ? mask_at(view, z, group, n, row) : 0;
            }
        };

        const u64 own = z * tiles + tile;
        if (!DITTO_SHARE) {
            copy<ROWS, THREADS>(at + OWN_K, digits.k_rows + own * ROWS);
            copy<VALUES, THREADS>(at + OWN_V, digits.v_rows + own * VALUES);
        }
        const u64 scale_at = own * 64 + warp * 16 + g;
        const float k_scale[2] = {digits.k_scales[scale_at], digits.k_scales[scale_at + 8]}, v_scale[2] = {digits.v_scales[scale_at], digits.v_scales[scale_at + 8]};
        float ak[DP / 8][4], av[VP / 8][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int c = 0; c < DP / 8; ++c) ak[c][i] = 0.0f;
#pragma unroll
            for (int c = 0; c < VP / 8; ++c) av[c][i] = 0.0f;
        }
        int block = skip(blocks - 1);
        if (block >= 0) fetch(block);
        copy_commit();
#pragma unroll 1
        while (block >= 0) {
            const int s0 = block * 64, here = rows - s0 < 64 ? rows - s0 : 64;
            copy_wait<0>();
            __syncthreads();
            const u64 from = z * blocks + block;
            if (!DITTO_SHARE) copy<ROWS, THREADS>(at + Q_COLUMNS, digits.q_columns + from * ROWS);
            copy<DP * 4, THREADS>(at + Q_COLUMN_SCALES, digits.q_column_scales + from * DP);
            copy_commit();
            int low, high;
            query_range(n, s0, here, low, high);
            const bool some = DITTO_MASK || here < 64 || o0 + 64 > (int)m || (causal && o0 + 63 > low);

            float p[8][4];
            {
                const RowScales scales(k_scale[0], k_scale[1]);
                const LeftTile<DP> keys(tile_at<ROWS, THREADS>(at, OWN_K, digits.k_rows + own * ROWS), warp * 16);
                const unsigned queries = tile_at<ROWS, THREADS>(at, Q_ROWS, digits.q_rows + from * ROWS);
#pragma unroll
                for (int f = 0; f < 8; f += 2) {
                    Sums sums;
                    sums.multiply<DP, 64 * DP, false>(keys, queries, f * 8);
                    scales.finish(p[f], p[f + 1], sums, floats(Q_SCALES) + f * 8 + 2 * t);
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const int place = (f + h) * 8 + 2 * t;
                        float(&s)[4] = p[f + h];
                        const float2 less = *reinterpret_cast<const float2*>(floats(LOGS) + place), top = *reinterpret_cast<const float2*>(floats(TOPS) + place);
#pragma unroll
                        for (int i = 0; i < 4; ++i) s[i] = weight(__fmaf_rn(__fsub_rn(SCORE(s[i]), i % 2 ? top.y : top.x), factor, i % 2 ? -less.y : -less.x));
                    }
                }
            }
            // Which of this lane's pairs are open. In lists of one head each, those of a key are from a query on.
            int from_query[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) from_query[h] = key0 + 8 * h >= (int)m ? 64 : causal ? key0 + 8 * h - s0 : 0;
            unsigned open = 0;
            auto is_open = [&](int f, int i) {
                const int place = f * 8 + 2 * t + i % 2;
                return DITTO_INSIDE ? place >= from_query[i / 2] && place < here : (open >> (f * 4 + i) & 1) != 0;
            };
            if (some) {
#pragma unroll
                for (int f = 0; f < 8; ++f)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        if (!DITTO_INSIDE) {
                            const int place = f * 8 + 2 * t + i % 2, key = key0 + i / 2 * 8;
                            bool ok = place < here && key < (int)m && (!causal || key <= query_of(s0 + place, n));
                            if (DITTO_MASK && ok) ok = fabsf(mask[smask[place] + key * view.column]) > 0.0f;
                            open |= ok ? 1u << (f * 4 + i) : 0u;
                        }
                        p[f][i] = is_open(f, i) ? p[f][i] : 0.0f;
                    }
            }
            Rows(p).accumulate<VP>(av, tile_at<VALUES, THREADS>(at, G_COLUMNS, digits.g_columns + from * VALUES), floats(G_COLUMN_SCALES) + 2 * t);
            {
                const RowScales scales(v_scale[0], v_scale[1]);
                const LeftTile<VP> values(tile_at<VALUES, THREADS>(at, OWN_V, digits.v_rows + own * VALUES), warp * 16);
                const unsigned gradients = tile_at<VALUES, THREADS>(at, G_ROWS, digits.g_rows + from * VALUES);
#pragma unroll
                for (int f = 0; f < 8; f += 2) {
                    Sums sums;
                    sums.multiply<VP, 64 * VP, false>(values, gradients, f * 8);
                    float slope[2][4];
                    scales.finish(slope[0], slope[1], sums, floats(G_SCALES) + f * 8 + 2 * t);
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const int place = (f + h) * 8 + 2 * t;
                        const float2 less = *reinterpret_cast<const float2*>(floats(DELTAS) + place);
#pragma unroll
                        for (int i = 0; i < 4; ++i) p[f + h][i] = __fmul_rn(p[f + h][i], __fsub_rn(slope[h][i], i % 2 ? less.y : less.x));
                    }
                }
            }
            if (some)
#pragma unroll
                for (int f = 0; f < 8; ++f)
#pragma unroll
                    for (int i = 0; i < 4; ++i) p[f][i] = is_open(f, i) ? p[f][i] : 0.0f;
            copy_wait<0>();
            __syncthreads();
            // All warps are done with what the next block of queries replaces.
            const int next = skip(block - 1);
            if (next >= 0) fetch(next);
            copy_commit();
            Rows(p).accumulate<DP>(ak, tile_at<ROWS, THREADS>(at, Q_COLUMNS, digits.q_columns + from * ROWS), floats(Q_COLUMN_SCALES) + 2 * t);
            block = next;
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (key0 + 8 * h >= (int)m) continue;
#if DITTO_INSIDE
            const u64 place = list_at<D>(z, n, inside.heads, inside.wide) + (u64)(unsigned)(key0 + 8 * h) * inside.wide;
            float *const to_k = dk + place, *const to_v = dv + place;
#else
            float *const to_k = dk + (z * m + key0 + 8 * h) * D, *const to_v = dv + (z * m + key0 + 8 * h) * DV;
#endif
#pragma unroll
            for (int c = 0; c < DP / 8; ++c) store_pair<D>(to_k, 8 * c + 2 * t, __fmul_rn(ak[c][2 * h], scale), __fmul_rn(ak[c][2 * h + 1], scale));
#pragma unroll
            for (int c = 0; c < VP / 8; ++c) store_pair<DV>(to_v, 8 * c + 2 * t, av[c][2 * h], av[c][2 * h + 1]);
        }
        copy_wait<0>();
        __syncthreads();
    }
}
