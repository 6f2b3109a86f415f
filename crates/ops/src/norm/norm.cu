// Normalisation of rows. This text is compiled after `#define` lines:
//   CHUNK, ROWS        constants of the sum trees
//   CENTERED           1: the mean is subtracted
//   AFFINE             0: none, 1: gain, 2: gain and shift
//   SUMS               how many gradients of gain and shift are wanted
//   FUSED              1: one kernel computes all gradients
//   PER_LANE, EXACT    a warp per row: elements of a lane, and whether rows fill all lanes
//   THREADS, KEEP      a block per row: its threads, and whether the row stays in shared memory
// The column rule and the formulas inverse_std, normalized and input_gradient come before this text too.

// A prologue, if there is one, is defined before this text; rows are read through it.
#ifdef DITTO_PROLOGUE
#define PROLOGUE_PARAM , const __grid_constant__ Prologue prologue_with
#define READ_ROW(v) EACH v[q] = IN ? prologue(prologue_with, row, columns, AT) : 0.0f
#else
#define PROLOGUE_PARAM
#define READ_ROW(v) load_row(v, x + row * columns, width, lane)
#endif

// So is an epilogue, if there is one; results are stored through it.
#ifdef DITTO_EPILOGUE
#define EPILOGUE_PARAM , const __grid_constant__ Epilogue epilogue_with
#define STORE(at, column, value) epilogue_store(epilogue_with, out, at, column, value)
#else
#define EPILOGUE_PARAM
#define STORE(at, column, value) out[at] = value
#endif

// The sum of a warp's lanes, by halving; every lane gets it.
__device__ __forceinline__ float warp_sum(float s) {
    #pragma unroll
    for (int o = 16; o > 0; o /= 2) s = __fadd_rn(s, __shfl_down_sync(0xffffffffu, s, o));
    return __shfl_sync(0xffffffffu, s, 0);
}

__device__ __forceinline__ float scaled_shifted(float hat, const float* __restrict__ gamma, const float* __restrict__ beta, u64 j) {
#if AFFINE == 2
    return __fmaf_rn(hat, gamma[j], beta[j]);
#elif AFFINE == 1
    return __fmul_rn(hat, gamma[j]);
#else
    return hat;
#endif
}

__device__ __forceinline__ float gained(float dy, const float* __restrict__ gamma, u64 j) {
#if AFFINE
    return __fmul_rn(dy, gamma[j]);
#else
    return dy;
#endif
}

// Running sums of dy x^ and of dy over `count` rows of a column. Full groups of ROWS rows are unrolled, so many loads
// overlap.
__device__ __forceinline__ void chain_column(
    const float* __restrict__ x, const float* __restrict__ dy, const float* means, const float* inverses, unsigned step,
    unsigned count, u64 columns, float& gain, float& shift) {
    gain = shift = 0.0f;
    if (count == ROWS) {
        #pragma unroll
        for (unsigned i = 0; i < ROWS; i += 8) {
            float v[8], g[8];
            #pragma unroll
            for (unsigned k = 0; k < 8; ++k) {
                v[k] = x[(i + k) * columns];
                g[k] = dy[(i + k) * columns];
            }
            #pragma unroll
            for (unsigned k = 0; k < 8; ++k) {
                gain = __fadd_rn(gain, __fmul_rn(g[k], normalized(v[k], means[(i + k) * step], inverses[(i + k) * step])));
                shift = __fadd_rn(shift, g[k]);
            }
        }
        return;
    }
    for (unsigned i = 0; i < count; ++i) {
        const float g = dy[i * columns];
        gain = __fadd_rn(gain, __fmul_rn(g, normalized(x[i * columns], means[i * step], inverses[i * step])));
        shift = __fadd_rn(shift, g);
    }
}

#ifdef PER_LANE

// A warp per row. Element lane + 32 q of the row is the lane's q-th element, as in the row rule.
#define EACH _Pragma("unroll") for (unsigned q = 0; q < PER_LANE; ++q)
#define AT (lane + 32 * q)
#define IN (EXACT || AT < width)

__device__ __forceinline__ void load_row(float (&v)[PER_LANE], const float* __restrict__ from, unsigned width, unsigned lane) {
    EACH v[q] = IN ? from[AT] : 0.0f;
}

// Mean and 1 / std of a row that a warp holds.
__device__ __forceinline__ void row_stats(const float (&v)[PER_LANE], unsigned width, unsigned lane, float inv, float eps, float& mean, float& r) {
    mean = 0.0f;
#if CENTERED
    float sum = 0.0f;
    EACH if (IN) sum = __fadd_rn(sum, v[q]);
    mean = __fmul_rn(warp_sum(sum), inv);
#endif
    float squares = 0.0f;
    EACH if (IN) {
        const float d = __fsub_rn(v[q], mean);
        squares = __fadd_rn(squares, __fmul_rn(d, d));
    }
    r = inverse_std(__fmul_rn(warp_sum(squares), inv), eps);
}

// Forward. 4 bytes read and 4 written per element.
extern "C" __global__ void __launch_bounds__(256) normalize(
    float* __restrict__ out, const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ beta,
    float* sums, u64 partials, u64 rows, u64 columns, float inv, float eps PROLOGUE_PARAM EPILOGUE_PARAM) {
    const unsigned lane = threadIdx.x % 32, width = (unsigned)columns;
    for (u64 row = blockIdx.x * 8ull + threadIdx.x / 32; row < rows; row += gridDim.x * 8ull) {
        float v[PER_LANE], mean, r;
        READ_ROW(v);
        row_stats(v, width, lane, inv, eps, mean, r);
        EACH if (IN) STORE(row * columns + AT, AT, scaled_shifted(normalized(v[q], mean, r), gamma, beta, AT));
    }
}

#ifdef BACKWARD

// The input gradient of one row. 8 bytes read and 4 written per element.
__device__ __forceinline__ void row_gradient(
    float* __restrict__ to, const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ dy,
    unsigned width, unsigned lane, float inv, float eps, float& mean, float& r) {
    float v[PER_LANE], h[PER_LANE];
    load_row(v, x, width, lane);
    load_row(h, dy, width, lane);
    row_stats(v, width, lane, inv, eps, mean, r);
    float sum = 0.0f, moment = 0.0f;
    EACH if (IN) {
        h[q] = gained(h[q], gamma, AT);
        v[q] = normalized(v[q], mean, r);
        sum = __fadd_rn(sum, h[q]);
        moment = __fadd_rn(moment, __fmul_rn(h[q], v[q]));
    }
    const float mean_h = CENTERED ? __fmul_rn(warp_sum(sum), inv) : 0.0f;
    const float mean_hx = __fmul_rn(warp_sum(moment), inv);
    EACH if (IN) to[AT] = input_gradient(h[q], mean_h, v[q], mean_hx, r);
}

#if FUSED

// A block takes ROWS rows, one chain of the column rule. First its warps process a row each in turn. Then its threads
// sum a column each over those rows, which are still in the caches.
extern "C" __global__ void __launch_bounds__(256, 2) gradients(
    float* __restrict__ dx, const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ dy,
    float* __restrict__ chain, float* stats, float* sums, u64 partials, u64 rows, u64 groups, u64 columns, float inv, float eps) {
    __shared__ float means[ROWS], inverses[ROWS];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = (unsigned)columns;
    for (u64 group = blockIdx.x; group < groups; group += gridDim.x) {
        const u64 first = group * ROWS;
        const unsigned count = rows - first < ROWS ? (unsigned)(rows - first) : ROWS;
        for (unsigned i = warp; i < count; i += 8) {
            const u64 at = (first + i) * columns;
            float mean, r;
            row_gradient(dx + at, x + at, gamma, dy + at, width, lane, inv, eps, mean, r);
            if (lane == 0) {
                means[i] = mean;
                inverses[i] = r;
            }
        }
        __syncthreads();
        for (unsigned j = threadIdx.x; j < width; j += 256) {
            float gain, shift;
            chain_column(x + first * columns + j, dy + first * columns + j, means, inverses, 1, count, columns, gain, shift);
            chain[group * columns + j] = gain;
            if (SUMS == 2) chain[(groups + group) * columns + j] = shift;
        }
        __syncthreads();
    }
}

#else

extern "C" __global__ void __launch_bounds__(256, 2) gradients(
    float* __restrict__ dx, const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ dy,
    float* __restrict__ chain, float* __restrict__ stats, float* sums, u64 partials, u64 rows, u64 groups, u64 columns, float inv, float eps) {
    const unsigned lane = threadIdx.x % 32, width = (unsigned)columns;
    for (u64 row = blockIdx.x * 8ull + threadIdx.x / 32; row < rows; row += gridDim.x * 8ull) {
        const u64 at = row * columns;
        float mean, r;
        row_gradient(dx + at, x + at, gamma, dy + at, width, lane, inv, eps, mean, r);
        if (SUMS && lane == 0) {
            stats[2 * row] = mean;
            stats[2 * row + 1] = r;
        }
    }
}

#endif
#endif

#else

// A block per row. In every pass, a chunk of the row belongs to one warp, and element lane + 32 q of it to one lane, so
// only the sums need barriers. The row stays in shared memory (KEEP), or is read again, mostly from the L2 cache.
#define WARPS (THREADS / 32)
#if KEEP
extern __shared__ float kept[];
typedef unsigned at_t;
#else
typedef u64 at_t;
#endif

// The sum of use(j, load(j)) over a row, by the row rule. `parts` has room for the chunk sums and the levels above
// them; two consecutive calls must use different `parts`.
template <class Load, class Use>
__device__ __forceinline__ float block_sum(at_t width, float* parts, Load load, Use use) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    at_t count = (width + CHUNK - 1) / CHUNK;
    for (at_t c = warp; c < count; c += WARPS) {
        const at_t base = c * CHUNK;
        float s = 0.0f;
        if (width - base >= CHUNK) {
            #pragma unroll 1
            for (unsigned q = 0; q < CHUNK / 32; q += 16) {
                float v[16];
                #pragma unroll
                for (unsigned i = 0; i < 16; ++i) v[i] = load(base + lane + 32 * (q + i));
                #pragma unroll
                for (unsigned i = 0; i < 16; ++i) s = __fadd_rn(s, use(base + lane + 32 * (q + i), v[i]));
            }
        } else {
            #pragma unroll 4
            for (at_t j = base + lane; j < width; j += 32) s = __fadd_rn(s, use(j, load(j)));
        }
        s = warp_sum(s);
        if (lane == 0) parts[c] = s;
    }
    __syncthreads();
    while (count > CHUNK) {
        float* const next = parts + count;
        const at_t groups = (count + CHUNK - 1) / CHUNK;
        for (at_t c = warp; c < groups; c += WARPS) {
            float s = 0.0f;
            const at_t end = count < (c + 1) * CHUNK ? count : (c + 1) * CHUNK;
            for (at_t j = c * CHUNK + lane; j < end; j += 32) s = __fadd_rn(s, parts[j]);
            s = warp_sum(s);
            if (lane == 0) next[c] = s;
        }
        __syncthreads();
        parts = next;
        count = groups;
    }
    float s = 0.0f;
    for (at_t j = lane; j < count; j += 32) s = __fadd_rn(s, parts[j]);
    return warp_sum(s);
}

// Calls body(j) for each element j of the row, on the thread that has j in block_sum.
template <class Body>
__device__ __forceinline__ void for_each(at_t width, Body body) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (at_t base = (at_t)warp * CHUNK; base < width; base += (at_t)WARPS * CHUNK) {
        const at_t end = width - base < CHUNK ? width : base + CHUNK;
        #pragma unroll 8
        for (at_t j = base + lane; j < end; j += 32) body(j);
    }
}

#if KEEP
#define PARTS(turn) (parts_memory + 64 * (turn))
#define PARTS_MEMORY __shared__ float parts_memory[128];
#define READ(k, from, j) kept[(k) * width + (j)]
#define STORE(k, j, value) kept[(k) * width + (j)] = (value)
#else
#define PARTS(turn) (sums + (blockIdx.x * 2ull + (turn)) * partials)
#define PARTS_MEMORY
#define READ(k, from, j) (from)[j]
#define STORE(k, j, value)
#endif

// Mean and 1 / std of the row at `from`. The row is kept as row 0.
__device__ __forceinline__ void row_stats(const float* __restrict__ from, at_t width, float* parts0, float* parts1, unsigned& turn, float inv, float eps, float& mean, float& r) {
    mean = 0.0f;
    const auto fetch = [&](at_t j) { return from[j]; };
#if CENTERED
    mean = __fmul_rn(block_sum(width, turn ? parts1 : parts0, fetch, [&](at_t j, float v) { STORE(0, j, v); return v; }), inv);
    turn ^= 1;
    const auto again = [&](at_t j) { return READ(0, from, j); };
#else
    const auto again = fetch;
#endif
    const float squares = block_sum(width, turn ? parts1 : parts0, again, [&](at_t j, float v) {
#if !CENTERED
        STORE(0, j, v);
#endif
        const float d = __fsub_rn(v, mean);
        return __fmul_rn(d, d);
    });
    turn ^= 1;
    r = inverse_std(__fmul_rn(squares, inv), eps);
}

extern "C" __global__ void __launch_bounds__(THREADS) normalize(
    float* __restrict__ out, const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ beta,
    float* sums, u64 partials, u64 rows, u64 columns, float inv, float eps) {
    PARTS_MEMORY
    const at_t width = (at_t)columns;
    unsigned turn = 0;
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const float* const from = x + row * columns;
        float mean, r;
        row_stats(from, width, PARTS(0), PARTS(1), turn, inv, eps, mean, r);
        float* const to = out + row * columns;
        for_each(width, [&](at_t j) { to[j] = scaled_shifted(normalized(READ(0, from, j), mean, r), gamma, beta, j); });
    }
}

#ifdef BACKWARD

extern "C" __global__ void __launch_bounds__(THREADS) gradients(
    float* __restrict__ dx, const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ dy,
    float* __restrict__ chain, float* __restrict__ stats, float* sums, u64 partials, u64 rows, u64 groups, u64 columns, float inv, float eps) {
    PARTS_MEMORY
    const at_t width = (at_t)columns;
    unsigned turn = 0;
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const float* const from = x + row * columns;
        const float* const up = dy + row * columns;
        float mean, r;
        row_stats(from, width, PARTS(0), PARTS(1), turn, inv, eps, mean, r);
        // Row 1 keeps h. Without shared memory, h is recomputed.
        const auto h_of = [&](at_t j) { return gained(up[j], gamma, j); };
#if KEEP
        const auto h_again = [&](at_t j) { return kept[width + j]; };
#else
        const auto h_again = h_of;
#endif
        const float moment = block_sum(width, PARTS(turn), h_of, [&](at_t j, float h) {
            STORE(1, j, h);
            return __fmul_rn(h, normalized(READ(0, from, j), mean, r));
        });
        turn ^= 1;
        float mean_h = 0.0f;
#if CENTERED
        mean_h = __fmul_rn(block_sum(width, PARTS(turn), h_again, [&](at_t j, float h) { return h; }), inv);
        turn ^= 1;
#endif
        const float mean_hx = __fmul_rn(moment, inv);
        float* const to = dx + row * columns;
        for_each(width, [&](at_t j) { to[j] = input_gradient(h_again(j), mean_h, normalized(READ(0, from, j), mean, r), mean_hx, r); });
        if (SUMS && threadIdx.x == 0) {
            stats[2 * row] = mean;
            stats[2 * row + 1] = r;
        }
    }
}

#endif
#endif

#if defined(BACKWARD) && SUMS > 0

#if !FUSED

// First level of the column rule: a thread sums ROWS rows of its column. 8 bytes read per element.
extern "C" __global__ void __launch_bounds__(256) chains(
    float* __restrict__ chain, const float* __restrict__ stats, const float* __restrict__ x, const float* __restrict__ dy,
    u64 rows, u64 groups, u64 columns) {
    const u64 items = groups * columns;
    for (u64 item = blockIdx.x * 256ull + threadIdx.x; item < items; item += gridDim.x * 256ull) {
        const u64 group = item / columns, j = item - group * columns, first = group * ROWS;
        const unsigned count = rows - first < ROWS ? (unsigned)(rows - first) : ROWS;
        const float* const of = stats + 2 * first;
        float gain, shift;
        chain_column(x + first * columns + j, dy + first * columns + j, of, of + 1, 2, count, columns, gain, shift);
        chain[item] = gain;
        if (SUMS == 2) chain[items + item] = shift;
    }
}

#endif

// The other levels of the column rule. A block takes 32 columns.
extern "C" __global__ void fold(const float* __restrict__ chain, float* __restrict__ out, u64 groups, u64 columns, u64 stride, u64 count) {
    __shared__ float part[ROWS][33];
    const unsigned x = threadIdx.x % 32, y = threadIdx.x / 32;
    for (u64 which = 0; which < count; ++which) {
        const float* const from = chain + which * groups * columns;
        for (u64 tile = blockIdx.x; tile * 32 < columns; tile += gridDim.x) {
            const u64 column = tile * 32 + x, at = column < columns ? column : columns - 1;
            const float total = column_sum(groups, part, [&](u64 r) { return from[r * columns + at]; });
            if (y == 0 && column < columns) out[which * stride + column] = total;
        }
    }
}

#endif
