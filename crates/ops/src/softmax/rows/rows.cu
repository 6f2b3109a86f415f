// Row kernels: softmax and its relatives. Each row gives a maximum, a sum of terms, and results made from both:
//
//     m = max score(x)                         NaN ignored; 0 without MAX
//     t = term(x, m),  s = sum of t            by the row rule of the numerics contract
//     r = of_row(s)                            once per row
//     y = post(x, m, s, t, hit, g, r)          per element, or PER_ROW
//
// x are the elements of the INS inputs at one position. This file is the common part. A kernel follows it, by how rows are
// distributed: rows_warp.cu, rows_chunks.cu, rows_shared.cu, rows_long.cu, or columns.cu along an axis that is not the last.
//
// Parameters, defined before this text:
//   INS                 inputs that have rows, 1 or 2
//   MAX                 whether m is needed
//   MASKED              the last input is a mask: score() leaves elements out, and its rows repeat after `period`
//   LABELS              each row has a label; hit is 1 at the label and 0 elsewhere
//   SCALAR              0: g is 0;  1: g is one scalar for all rows;  2: one for each row
//   PER_ROW             one result per row, from the element at its label, instead of one per element
//   TERM_REPLACES_X     post() reads t but not the first input, so that t can be stored in its place
//   CHUNK               elements of a chunk of the row rule
//   CONSTANT_PARAMETERS, TERM_CONSTANTS, POST_CONSTANTS
//                       constants of the formulas, which are kernel arguments: as parameters, and as arguments of
//                       term() and post(); each begins with a comma if there are any
//   score() (if MASKED), of_row(), term(), post()
//                       generated device functions

typedef unsigned long long u64;

#if INS == 1
#define INPUT_PARAMETERS const float* __restrict__ in0
#define INPUTS in0
#define ELEMENTS(x, q) x[0][q]
#else
#define INPUT_PARAMETERS const float* __restrict__ in0, const float* __restrict__ in1
#define INPUTS in0, in1
#define ELEMENTS(x, q) x[0][q], x[1][q]
#endif

// The formulas on the q-th elements of x[INS][].
#if MASKED
#define SCORE(x, q) score(ELEMENTS(x, q))
#else
#define SCORE(x, q) x[0][q]
#endif
#define TERM(x, q, m) term(ELEMENTS(x, q), m TERM_CONSTANTS)
#define POST(x, q, m, s, t, hit, g, r) post(ELEMENTS(x, q), m, s, t, hit, g, r POST_CONSTANTS)

// A fused prologue or epilogue is defined before this text.
#ifdef DITTO_PROLOGUE
#define PROLOGUE_PARAM , const __grid_constant__ Prologue prologue_with
#else
#define PROLOGUE_PARAM
#endif
#ifdef DITTO_EPILOGUE
#define EPILOGUE_PARAM , const __grid_constant__ Epilogue epilogue_with
#else
#define EPILOGUE_PARAM
#endif

// Parameters of all kernels of rows. `workspace` has `workspace_words` for each row; `period` is the rows of the last input.
#define ROW_PARAMETERS \
    float* __restrict__ out, INPUT_PARAMETERS, const unsigned* __restrict__ labels, const float* __restrict__ scalar, \
    float* workspace, u64 workspace_words, u64 rows, u64 columns, u64 period CONSTANT_PARAMETERS PROLOGUE_PARAM EPILOGUE_PARAM

#define NEG_INF (-__int_as_float(0x7f800000))
#define IS_MASK(i) (MASKED && (i) == INS - 1)
// Where a row of the last input starts.
#define MASK_START(row) (MASKED ? (row) % period * columns : (row) * columns)
// The scalar of a row, where g_all is that of all rows.
#define SCALAR_OF(row) (SCALAR == 2 ? scalar[row] : g_all)
#define HIT(j) (LABELS && (j) == label ? 1.0f : 0.0f)

// The maximum of a warp's lanes, in all lanes.
__device__ __forceinline__ float warp_max(float m) {
    #pragma unroll
    for (int o = 16; o > 0; o /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, m, o);
        m = fmaxf(m, other);
    }
    return m;
}

// The sum of a warp's lanes by the row rule, lane i + half added to lane i; in lane 0.
__device__ __forceinline__ float warp_sum(float s) {
    #pragma unroll
    for (int o = 16; o > 0; o /= 2) s = __fadd_rn(s, __shfl_down_sync(0xffffffffu, s, o));
    return s;
}

// The sum of a row whose warps have written the sums of its chunks, in all lanes.
__device__ __forceinline__ float sum_of_chunks(const float* chunk_sums, unsigned chunks) {
    __syncthreads();
    float s = 0.0f;
    for (unsigned c = threadIdx.x % 32; c < chunks; c += 32) s = __fadd_rn(s, chunk_sums[c]);
    return __shfl_sync(0xffffffffu, warp_sum(s), 0);
}

// The label of a row. One result per row is read at the label, so there it is clamped to the row.
__device__ __forceinline__ unsigned label_of(const unsigned* __restrict__ labels, u64 row, u64 columns) {
#if PER_ROW
    return labels[row] < columns ? labels[row] : (unsigned)columns - 1;
#elif LABELS
    return labels[row];
#else
    return 0;
#endif
}
