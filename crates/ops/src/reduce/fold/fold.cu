// Folds by the fixed trees of the numerics contract (C3): a kernel of one stage, for the elements (`fold_*`) or for the
// partial results of lower levels (`more_*`).
//
// This text is compiled at run time after kinds.cu and a few lines that say what is folded:
//   FOLD_ROWS, MORE_ROWS, FOLD_SHORT, MORE_SHORT, FOLD_COLUMNS or MORE_COLUMNS: the kernel that is compiled
//   CHUNK          elements of a chunk of the row rule
//   ROWS           rows of a chain of the column rule
//   UNROLL         elements that a thread has in flight
//   KIND           how elements are folded: a struct of kinds.cu
//   PARAMS         the kernel's first parameters: inputs, values given per result, constants
//   ELEMENT(i, o)  the element at position i, which belongs to result o
//   POST(s, o)     result o, from what was folded

typedef unsigned long long u64;

// What the kernels fold, from their parameters: the elements, or the partial results of the level below.
#define ELEMENTS [&](u64 i, u64 o) { return ELEMENT(i, o); }
#define PARTIALS [&](u64 i, u64) { return partial[i]; }
#define RESULT [&](float s, u64 o) { return POST(s, o); }

// Row rule. Thread mapping: `group` threads fold one chunk of CHUNK neighbouring elements of one row; lane l
// takes elements l, l + 32, ... in order, then the lanes fold by halving. A group is a warp, or fewer threads
// where rows are that short: the lanes left out would hold the start, which changes nothing. 4 bytes read per
// element and input.
template <class Element, class Post>
__device__ __forceinline__ void by_rows(
    Element element, Post post, float* __restrict__ out,
    u64 rows, u64 columns, u64 chunks, unsigned group, int last) {
    const unsigned lane = threadIdx.x % group, per_warp = 32 / group;
    const u64 items = rows * chunks;
    const u64 step = (u64)gridDim.x * (blockDim.x / 32) * per_warp;
    u64 first = (blockIdx.x * (u64)(blockDim.x / 32) + threadIdx.x / 32) * per_warp;
    // The whole warp goes on as long as one of its groups has work: all lanes take part in the shuffles.
    for (; first < items; first += step) {
        const u64 w = first + threadIdx.x % 32 / group;
        const u64 row = chunks == 1 ? w : w / chunks;
        float s = KIND::start();
        if (w < items) {
            const u64 start = (w - row * chunks) * CHUNK, left = columns - start;
            const unsigned len = left < CHUNK ? (unsigned)left : CHUNK;
            const u64 at = row * columns + start;
            if (len == CHUNK) {
                #pragma unroll UNROLL
                for (unsigned q = 0; q < CHUNK / 32; ++q) s = KIND::combine(s, element(at + lane + 32 * q, row));
            } else {
                #pragma unroll 4
                for (unsigned j = lane; j < len; j += 32) s = KIND::combine(s, element(at + j, row));
            }
        }
        for (unsigned o = group / 2; o > 0; o /= 2) s = KIND::combine(s, __shfl_down_sync(0xffffffffu, s, o, group));
        if (lane == 0 && w < items) out[w] = last ? post(s, row) : s;
    }
}

#define ROWS_PARAMETERS \
    PARAMS, const float* __restrict__ partial, float* __restrict__ out, \
    u64 rows, u64 columns, u64 chunks, unsigned group, int last
#define ROWS_ARGUMENTS RESULT, out, rows, columns, chunks, group, last
#ifdef FOLD_ROWS
extern "C" __global__ void fold_rows(ROWS_PARAMETERS) { by_rows(ELEMENTS, ROWS_ARGUMENTS); }
#endif
#ifdef MORE_ROWS
extern "C" __global__ void more_rows(ROWS_PARAMETERS) { by_rows(PARTIALS, ROWS_ARGUMENTS); }
#endif

// Column rule, rows of one chain only. Thread mapping: one thread per result; neighbouring threads read
// neighbouring words.
template <class Element, class Post>
__device__ __forceinline__ void by_short_columns(
    Element element, Post post, float* __restrict__ out,
    u64 outer, unsigned rows, u64 inner, int last) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < outer * inner; i += step) {
        const u64 at = i / inner * rows * inner + i % inner;
        float s = KIND::start();
        #pragma unroll 8
        for (unsigned r = 0; r < rows; ++r) s = KIND::combine(s, element(at + r * inner, i));
        out[i] = last ? post(s, i) : s;
    }
}

#define SHORT_PARAMETERS \
    PARAMS, const float* __restrict__ partial, float* __restrict__ out, \
    u64 outer, unsigned rows, u64 inner, int last
#define SHORT_ARGUMENTS RESULT, out, outer, rows, inner, last
#ifdef FOLD_SHORT
extern "C" __global__ void fold_short(SHORT_PARAMETERS) { by_short_columns(ELEMENTS, SHORT_ARGUMENTS); }
#endif
#ifdef MORE_SHORT
extern "C" __global__ void more_short(SHORT_PARAMETERS) { by_short_columns(PARTIALS, SHORT_ARGUMENTS); }
#endif

// Column rule. Thread mapping: a block takes `width` neighbouring columns (at most 32) and up to ROWS * ROWS
// rows; thread row y chains ROWS rows from ROWS y on, then the first thread row chains the results: two levels of
// the tree at once. Neighbouring threads read neighbouring words.
template <class Element, class Post>
__device__ __forceinline__ void by_columns(
    Element element, Post post, float* __restrict__ out,
    u64 outer, u64 rows, u64 inner,
    u64 supers, u64 tiles, unsigned width, int last) {
    __shared__ float part[ROWS][33];
    const unsigned x = threadIdx.x % width, y = threadIdx.x / width, chains = blockDim.x / width;
    for (u64 item = blockIdx.x; item < outer * supers * tiles; item += gridDim.x) {
        const u64 column = item % tiles * width + x;
        const u64 super = item / tiles % supers, o = item / tiles / supers;
        const u64 first = super * (ROWS * ROWS), left = rows - first;
        const unsigned count = left < ROWS * ROWS ? (unsigned)left : ROWS * ROWS;
        const u64 result = o * inner + column;
        // Threads beyond the last whole thread row have nothing to do.
        if (y < chains && column < inner) {
            for (unsigned chain = y; chain * ROWS < count; chain += chains) {
                const u64 at = (o * rows + first + chain * ROWS) * inner + column;
                const unsigned len = count - chain * ROWS < ROWS ? count - chain * ROWS : ROWS;
                float s = KIND::start();
                if (len == ROWS) {
                    #pragma unroll UNROLL
                    for (unsigned r = 0; r < ROWS; ++r) s = KIND::combine(s, element(at + r * inner, result));
                } else {
                    for (unsigned r = 0; r < len; ++r) s = KIND::combine(s, element(at + r * inner, result));
                }
                part[chain][x] = s;
            }
        }
        __syncthreads();
        if (y == 0 && column < inner) {
            float s = KIND::start();
            for (unsigned c = 0; c * ROWS < count; ++c) s = KIND::combine(s, part[c][x]);
            out[(o * supers + super) * inner + column] = last ? post(s, result) : s;
        }
        __syncthreads();
    }
}

#define COLUMNS_PARAMETERS \
    PARAMS, const float* __restrict__ partial, float* __restrict__ out, \
    u64 outer, u64 rows, u64 inner, u64 supers, u64 tiles, unsigned width, int last
#define COLUMNS_ARGUMENTS RESULT, out, outer, rows, inner, supers, tiles, width, last
#ifdef FOLD_COLUMNS
extern "C" __global__ void fold_columns(COLUMNS_PARAMETERS) { by_columns(ELEMENTS, COLUMNS_ARGUMENTS); }
#endif
#ifdef MORE_COLUMNS
extern "C" __global__ void more_columns(COLUMNS_PARAMETERS) { by_columns(PARTIALS, COLUMNS_ARGUMENTS); }
#endif
