// The L2 norm of many values taken together, by the row rule (C3): the squares of all chunks of all values in one
// launch, then one block that goes up the trees.
//
// The module's head defines ENTRIES, the values one launch takes, and CHUNK, the elements of a chunk.

struct Table {
    unsigned long long x[ENTRIES];
    // The first chunk of each value among those of the table, and behind the last one how many there are.
    unsigned first[ENTRIES + 1];
    // Elements of the last chunk.
    unsigned last[ENTRIES];
};

// Lane 0 gets the sum of the lanes, folded by halving.
__device__ __forceinline__ float fold(float s) {
    #pragma unroll
    for (unsigned o = 16; o > 0; o /= 2) s = __fadd_rn(s, __shfl_down_sync(0xffffffffu, s, o));
    return s;
}

__device__ __forceinline__ float square(float x) { return __fmul_rn(x, x); }

// Sums of squares of chunks, a warp for each; lane l takes elements l, l + 32, ... in order. Chunks are numbered
// through all values, so that warps have equal work whatever the sizes are. Also says where the chunks of each value
// are: the first of them and their number, from number `base` on.
extern "C" __global__ void __launch_bounds__(256) square_chunks(
    const __grid_constant__ Table table, float* __restrict__ sums, unsigned* __restrict__ index,
    unsigned entries, unsigned base) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned long long thread = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    const unsigned long long warps = (unsigned long long)gridDim.x * (blockDim.x / 32);
    if (thread < entries) {
        index[2 * thread] = base + table.first[thread];
        index[2 * thread + 1] = table.first[thread + 1] - table.first[thread];
    }
    for (unsigned long long w = thread / 32; w < table.first[entries]; w += warps) {
        // The last value that begins at or before this chunk; one without chunks is never the last.
        unsigned low = 0, high = entries;
        while (high - low > 1) {
            const unsigned middle = (low + high) / 2;
            if (table.first[middle] <= w) low = middle; else high = middle;
        }
        const float* x = reinterpret_cast<const float*>(table.x[low]) + (w - table.first[low]) * CHUNK;
        const unsigned len = w + 1 == table.first[low + 1] ? table.last[low] : CHUNK;
        float s = 0.0f;
        if (len == CHUNK) {
            #pragma unroll
            for (unsigned q = 0; q < CHUNK / 32; ++q) s = __fadd_rn(s, square(x[lane + 32 * q]));
        } else {
            #pragma unroll 4
            for (unsigned j = lane; j < len; j += 32) s = __fadd_rn(s, square(x[j]));
        }
        s = fold(s);
        if (lane == 0) sums[base + w] = s;
    }
}

// Sum of at most one chunk by a warp, in lane 0.
__device__ __forceinline__ float chunk_sum(const float* x, unsigned len) {
    float s = 0.0f;
    #pragma unroll 8
    for (unsigned j = threadIdx.x % 32; j < len; j += 32) s = __fadd_rn(s, x[j]);
    return fold(s);
}

// Sum of `count` > 0 numbers by the whole block, which overwrites them. A level's chunk k leaves its sum at place k.
__device__ float tree(float* x, unsigned count) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    do {
        const unsigned chunks = (count - 1) / CHUNK + 1;
        for (unsigned first = 0; first < chunks; first += warps) {
            const unsigned k = first + warp;
            float s = 0.0f;
            if (k < chunks) s = chunk_sum(x + (unsigned long long)k * CHUNK, k + 1 < chunks ? CHUNK : count - k * CHUNK);
            // What is written now has been read by then; what is read in later rounds is beyond it.
            __syncthreads();
            if (k < chunks && lane == 0) x[k] = s;
        }
        __syncthreads();
        count = chunks;
    } while (count > 1);
    return x[0];
}

// The norm of the norms, by one block. `large` says whether any value has more chunks than one warp adds up.
extern "C" __global__ void __launch_bounds__(1024) norm_of_norms(
    float* sums, const unsigned* index, float* squares, float* out, unsigned entries, unsigned large) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (unsigned some = 0; large && some < entries; some += 32) {
        const unsigned chunks = some + lane < entries ? index[2 * (some + lane) + 1] : 0;
        // The same in all warps, so the block stays together.
        for (unsigned mask = __ballot_sync(0xffffffffu, chunks > CHUNK); mask != 0; mask &= mask - 1) {
            const unsigned i = some + __ffs(mask) - 1;
            const float s = tree(sums + index[2 * i], index[2 * i + 1]);
            if (threadIdx.x == 0) squares[i] = square(__fsqrt_rn(s));
        }
    }
    for (unsigned i = warp; i < entries; i += warps) {
        const unsigned chunks = index[2 * i + 1];
        if (chunks > CHUNK) continue;
        const float s = chunk_sum(sums + index[2 * i], chunks);
        if (lane == 0) squares[i] = square(__fsqrt_rn(s));
    }
    __syncthreads();
    const float s = tree(squares, entries);
    if (threadIdx.x == 0) *out = __fsqrt_rn(s);
}
