// Attention backward in digits. A block owns 64 keys and values, each of its 4 warps 16 of them, and streams queries in blocks of 64.

constexpr int OWN = 64, THREADS = 128;
constexpr int ROWS = DIGITS * 64 * DP, VALUES = DIGITS * 64 * VP;

// Shared memory, in bytes: tiles of the block's own keys and values and of a block of queries, then scales and what there is per row. With
// DITTO_SHARE all tiles take turns at one place.
constexpr int TILES = DITTO_SHARE ? (ROWS > VALUES ? ROWS : VALUES) : 4 * ROWS + 3 * VALUES;
constexpr int OWN_K = 0, OWN_V = OWN_K + ROWS, OWN_COLUMNS = OWN_V + VALUES, Q_ROWS = OWN_COLUMNS + ROWS, G_ROWS = Q_ROWS + ROWS;
constexpr int G_COLUMNS = G_ROWS + VALUES, Q_COLUMNS = G_COLUMNS + VALUES;
constexpr int OWN_SCALES = TILES, Q_SCALES = OWN_SCALES + DP * 4, G_SCALES = Q_SCALES + 256, G_COLUMN_SCALES = G_SCALES + 256;
constexpr int Q_COLUMN_SCALES = G_COLUMN_SCALES + VP * 4, LOGS = Q_COLUMN_SCALES + DP * 4, TOPS = LOGS + 256, DELTAS = TOPS + 256;
constexpr int SLOPES = DELTAS + 256, MASKS = SLOPES + 64 * 64 * 4;

// The address of a tile, which begins at `place`; with DITTO_SHARE, it is copied first.
template <int BYTES> __device__ __forceinline__ unsigned tile_at(unsigned memory, int place, const u8* from) {
    if (!DITTO_SHARE) return memory + place;
    __syncthreads();
    copy<BYTES, THREADS>(memory, from);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    return memory;
}

// Where the slope of a pair lies, which goes from warps that have its key to the one that has its query: without bank conflicts on either
// side.
__device__ __forceinline__ int slope_at(int query, int key) { return query * 64 + (key ^ (query >> 1 & 1) * 8 ^ ((query ^ query >> 2) & 1) * 16); }

// The digits of queries and keys, by rows and by columns, and of values and gradients; see Part.
struct Digits {
    const u8 *q_rows, *q_columns, *k_rows, *k_columns, *v_rows, *g_rows, *g_columns;
    const float *q_scales, *q_column_scales, *k_scales, *k_column_scales, *v_scales, *g_scales, *g_column_scales;
};

// The left side of a product, made of w: two rows of each lane, with the scales of their largest numbers.
struct Rows {
    Left<64> left;
    float down[2];

    __device__ __forceinline__ explicit Rows(const float (&w)[8][4]) {
        float most[2] = {0.0f, 0.0f};
#pragma unroll
        for (int f = 0; f < 8; ++f)
#pragma unroll
            for (int i = 0; i < 4; ++i) most[i / 2] = larger(most[i / 2], w[f][i]);
        const Scale a(largest_of_row(most[0])), b(largest_of_row(most[1]));
        split_rows(left, w, a.up, b.up);
        down[0] = a.down;
        down[1] = b.down;
    }

    // acc += the product with a tile, whose scales are `columns`.
    template <int P> __device__ __forceinline__ void accumulate(float (&acc)[P / 8][4], unsigned tile, const float* columns) const {
        const RowScales scales(down[0], down[1]);
#pragma unroll
        for (int c = 0; c < P / 8; c += 2) {
            Sums sums;
            sums.multiply<64, 64 * P, true>(left, tile, c * 8);
            float x[2][4];
            scales.finish(x[0], x[1], sums, columns + c * 8);
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[c + h][i] = __fadd_rn(acc[c + h][i], x[h][i]);
        }
    }
};

// A pair's score and slope are made once; dk and dv are the block's own, dq goes from block to block in the order of the keys: `turns`
// counts, for every block of queries, the blocks that are through, and each adds to what its predecessor left. Work is handed out
// in order, so that whoever is waited for has begun. Rows are keys: lane (g, t) has keys g and g + 8 of its warp's 16.
extern "C" __global__ void __launch_bounds__(THREADS, DITTO_BLOCKS)
attention_digits_backward(const __grid_constant__ Digits digits, const float* __restrict__ mask, const float* __restrict__ logs,
                          const float* __restrict__ tops, const float* __restrict__ delta, float* dq, float* __restrict__ dk,
                          float* __restrict__ dv, unsigned* turns, unsigned batch, unsigned group, unsigned n, unsigned m, unsigned causal,
                          float factor, float scale, MaskView view, Inside inside) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ u64 ticket;
    const unsigned at = shared_address(memory);
    auto floats = [&](int place) { return reinterpret_cast<float*>(memory + place); };
    u64* const smask = reinterpret_cast<u64*>(memory + MASKS);
    // From a shuffle, so that the compiler knows it to be one for all lanes.
    const int warp = __shfl_sync(ALL, threadIdx.x >> 5, 0), g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;
    const int rows = (int)(group * n), blocks = (rows + 63) / 64;
    const unsigned tiles = (m + OWN - 1) / OWN;
    for (;;) {
        if (threadIdx.x == 0) ticket = atomicAdd(reinterpret_cast<u64*>(turns), 1ull);
        __syncthreads();
        const u64 work = ticket;
        if (work >= (u64)tiles * batch) return;
        // The first keys have the most queries under a causal mask.
        const unsigned tile = (unsigned)(work / batch);
        const u64 z = work % batch;
        const int o0 = (int)(tile * OWN), key0 = o0 + warp * 16 + g;
        unsigned* const turn = turns + 2 + z * blocks;

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
            copy<ROWS, THREADS>(at + OWN_COLUMNS, digits.k_columns + own * ROWS);
        }
        copy<DP * 4, THREADS>(at + OWN_SCALES, digits.k_column_scales + own * DP);
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
        int block = skip(blocks - 1), before = -1;
        if (block >= 0) fetch(block);
        copy_commit();
#pragma unroll 1
        while (block >= 0) {
            const int s0 = block * 64, here = rows - s0 < 64 ? rows - s0 : 64;
            copy_wait<0>();
            __syncthreads();
            if (before >= 0 && threadIdx.x == 0) pass_on(turn + before, tile + 1);
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
                Left<DP> keys;
                keys.load(tile_at<ROWS>(at, OWN_K, digits.k_rows + own * ROWS), warp * 16);
                const unsigned queries = tile_at<ROWS>(at, Q_ROWS, digits.q_rows + from * ROWS);
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
            Rows(p).accumulate<VP>(av, tile_at<VALUES>(at, G_COLUMNS, digits.g_columns + from * VALUES), floats(G_COLUMN_SCALES) + 2 * t);
            {
                const RowScales scales(v_scale[0], v_scale[1]);
                Left<VP> values;
                values.load(tile_at<VALUES>(at, OWN_V, digits.v_rows + own * VALUES), warp * 16);
                const unsigned gradients = tile_at<VALUES>(at, G_ROWS, digits.g_rows + from * VALUES);
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
#pragma unroll
            for (int f = 0; f < 8; ++f)
#pragma unroll
                for (int i = 0; i < 4; ++i) floats(SLOPES)[slope_at(f * 8 + 2 * t + i % 2, warp * 16 + g + i / 2 * 8)] = p[f][i];
            copy_wait<0>();
            __syncthreads();
            // All warps are done with what the next block of queries replaces.
            const int next = skip(block - 1);
            if (next >= 0) fetch(next);
            copy_commit();
            const Rows slopes(p);
            // Here a warp has 16 queries: rows g and g + 8. What there is of their dq is on its way while dk is made.
            const int row = warp * 16 + g;
            if (tile > 0) {
                if ((threadIdx.x & 31) == 0) wait_for_turn(turn + block, tile);
                __syncwarp();
            }
#if DITTO_INSIDE
            float* const out = dq + list_at<D>(z, n, inside.heads, inside.wide) + (u64)(unsigned)(s0 + row) * inside.wide;
            const unsigned apart = inside.wide;
#else
            float* const out = dq + (z * rows + s0 + row) * D;
            const unsigned apart = D;
#endif
            float aq[DP / 8][4];
#pragma unroll
            for (int c = 0; c < DP / 8; ++c)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const bool in = tile > 0 && row + 8 * h < here;
                    load_pair<D>(out + 8 * h * apart, 8 * c + 2 * t, in, aq[c][2 * h], aq[c][2 * h + 1]);
                }
            slopes.accumulate<DP>(ak, tile_at<ROWS>(at, Q_COLUMNS, digits.q_columns + from * ROWS), floats(Q_COLUMN_SCALES) + 2 * t);
#pragma unroll
            for (int f = 0; f < 8; ++f)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float2 pair = *reinterpret_cast<const float2*>(floats(SLOPES) + slope_at(row + 8 * h, f * 8 + 2 * t));
                    p[f][2 * h] = pair.x;
                    p[f][2 * h + 1] = pair.y;
                }
            Rows(p).accumulate<DP>(aq, tile_at<ROWS>(at, OWN_COLUMNS, digits.k_columns + own * ROWS), floats(OWN_SCALES) + 2 * t);
            const int last = causal && high / OWN < (int)tiles - 1 ? high / OWN : (int)tiles - 1;
            if ((int)tile == last)
#pragma unroll
                for (int c = 0; c < DP / 8; ++c)
#pragma unroll
                    for (int i = 0; i < 4; ++i) aq[c][i] = __fmul_rn(aq[c][i], scale);
#pragma unroll
            for (int c = 0; c < DP / 8; ++c)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    if (row + 8 * h < here) store_pair<D>(out + 8 * h * apart, 8 * c + 2 * t, aq[c][2 * h], aq[c][2 * h + 1]);
            before = block;
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
        if (before >= 0 && threadIdx.x == 0) pass_on(turn + before, tile + 1);
    }
}
