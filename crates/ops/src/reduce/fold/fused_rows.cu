// All stages of a fold over rows in one launch, by the row rule (C3). A row is read from memory once.
//
// This text is compiled at run time after kinds.cu and a few lines that pick one variant:
//   CHUNK       elements of a chunk of the row rule
//   PER_LANE    elements of a row that each lane keeps in registers; 0: a block keeps the row in shared memory
//   THREADS     threads of a block that keeps a row in shared memory
//   PARTS       most chunks of a row in shared memory
//   PARAMS      the kernel's first parameters: the input in0, values given per row g0, g1, ..., constants
//   GIVEN(F)    F(i) for every value given per row
//   STAGES(F)   F(k) for every stage k, in order
//   RESULT      the last stage's result
// and for each stage k, which may use values given per row a0, a1, ... and results of earlier stages r0, r1, ...:
//   Kind<k>     how elements are folded: a struct of kinds.cu
//   LOAD<k>(x)  the element, from the input's
//   POST<k>(s)  the result, from what was folded

typedef unsigned long long u64;

#if PER_LANE

// A row's fold in all lanes of its group; lane l has elements l, l + 32, ...
template <class Kind, class Element>
__device__ __forceinline__ float fold_row(unsigned lane, unsigned columns, unsigned group, Element element) {
    float s = Kind::start();
    #pragma unroll
    for (unsigned q = 0; q < PER_LANE; ++q) {
        if (lane + 32 * q < columns) s = Kind::combine(s, element(q));
    }
    for (unsigned o = group / 2; o > 0; o /= 2) s = Kind::combine(s, __shfl_down_sync(0xffffffffu, s, o, group));
    return __shfl_sync(0xffffffffu, s, 0, group);
}

#define LOAD_GIVEN(i) const float a##i = here ? g##i[row] : 0.0f;
#define STAGE(k) \
    const float s##k = fold_row<Kind##k>(lane, columns, group, [&](unsigned q) { return LOAD##k(x[q]); }); \
    const float r##k = POST##k(s##k);

// Thread mapping: `group` lanes per row, a warp or fewer where rows are that short. The whole warp goes on as long as one
// of its groups has a row: all lanes take part in the shuffles.
extern "C" __global__ void fused_rows(
    PARAMS, float* __restrict__ out, u64 rows, unsigned columns, unsigned group) {
    const unsigned lane = threadIdx.x % group, per_warp = 32 / group;
    const u64 step = (u64)gridDim.x * (blockDim.x / 32) * per_warp;
    u64 first = (blockIdx.x * (u64)(blockDim.x / 32) + threadIdx.x / 32) * per_warp;
    for (; first < rows; first += step) {
        const u64 row = first + threadIdx.x % 32 / group;
        const bool here = row < rows;
        GIVEN(LOAD_GIVEN)
        float x[PER_LANE];
        #pragma unroll
        for (unsigned q = 0; q < PER_LANE; ++q) {
            const unsigned j = lane + 32 * q;
            x[q] = here && j < columns ? in0[row * columns + j] : 0.0f;
        }
        STAGES(STAGE)
        if (lane == 0 && here) out[row] = RESULT;
    }
}

#else

// A warp's fold in lane 0.
template <class Kind> __device__ __forceinline__ float fold_warp(float s) {
    #pragma unroll
    for (int o = 16; o > 0; o /= 2) s = Kind::combine(s, __shfl_down_sync(0xffffffffu, s, o));
    return s;
}

// A row's fold in all threads of the block. A warp folds a chunk at a time; then every warp folds the chunks' results for
// itself.
template <class Kind, class Element>
__device__ __forceinline__ float fold_row(
    float (&parts)[PARTS], unsigned lane, unsigned warp, unsigned columns, unsigned chunks, Element element) {
    for (unsigned c = warp; c < chunks; c += THREADS / 32) {
        float s = Kind::start();
        const unsigned end = columns < (c + 1) * CHUNK ? columns : (c + 1) * CHUNK;
        #pragma unroll 8
        for (unsigned j = c * CHUNK + lane; j < end; j += 32) s = Kind::combine(s, element(j));
        s = fold_warp<Kind>(s);
        if (lane == 0) parts[c] = s;
    }
    __syncthreads();
    float s = Kind::start();
    for (unsigned c = lane; c < chunks; c += 32) s = Kind::combine(s, parts[c]);
    s = __shfl_sync(0xffffffffu, fold_warp<Kind>(s), 0);
    __syncthreads();
    return s;
}

#define LOAD_GIVEN(i) const float a##i = g##i[row];
#define STAGE(k) \
    const float s##k = \
        fold_row<Kind##k>(parts, lane, warp, columns, chunks, [&](unsigned j) { return LOAD##k(x[j]); }); \
    const float r##k = POST##k(s##k);

// Thread mapping: a block per row. The last barrier of a stage comes after all its reads of the row.
extern "C" __global__ void fused_rows(
    PARAMS, float* __restrict__ out, u64 rows, unsigned columns, unsigned group) {
    extern __shared__ float x[];
    __shared__ float parts[PARTS];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunks = (columns + CHUNK - 1) / CHUNK;
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        #pragma unroll 8
        for (unsigned j = threadIdx.x; j < columns; j += THREADS) x[j] = in0[row * columns + j];
        GIVEN(LOAD_GIVEN)
        __syncthreads();
        STAGES(STAGE)
        if (threadIdx.x == 0) out[row] = RESULT;
    }
}

#endif
