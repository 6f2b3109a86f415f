// Places of the largest or smallest elements. An element and its place are one 64-bit word that orders as
// wanted: the key of the number above, then the place from its other end, so that the first of several equal
// elements is the largest word. A NaN has the largest key. Words have a maximum whatever the order they are met in.

__device__ __forceinline__ unsigned long long word(float x, int smallest, unsigned place) {
    if (x != x) return 0xffffffff00000000ull | (0xffffffffu - place);
    const unsigned b = __float_as_uint(__fadd_rn(smallest ? -x : x, 0.0f));
    const unsigned key = (b & 0x80000000u) ? ~b : (b | 0x80000000u);
    return ((unsigned long long)key << 32) | (0xffffffffu - place);
}

__device__ __forceinline__ unsigned long long larger(unsigned long long a, unsigned long long b) {
    return a > b ? a : b;
}

__device__ __forceinline__ unsigned place_of(unsigned long long w) { return 0xffffffffu - (unsigned)w; }

__device__ __forceinline__ unsigned long long warp_largest(unsigned long long w) {
    #pragma unroll
    for (int o = 16; o > 0; o /= 2) w = larger(w, __shfl_xor_sync(0xffffffffu, w, o));
    return w;
}

// One warp per segment of a row. 4 bytes read per element.
extern "C" __global__ void arg_rows(
    const float* __restrict__ x, unsigned* __restrict__ out, unsigned long long* __restrict__ words,
    unsigned long long rows, unsigned long long columns, unsigned long long segments, unsigned long long length, int smallest) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned long long warps = (unsigned long long)gridDim.x * (blockDim.x / 32);
    for (unsigned long long w = blockIdx.x * (unsigned long long)(blockDim.x / 32) + threadIdx.x / 32; w < rows * segments; w += warps) {
        const unsigned long long row = w / segments, start = w % segments * length;
        const unsigned long long end = start + length < columns ? start + length : columns;
        unsigned long long best = 0;
        #pragma unroll 8
        for (unsigned long long j = start + lane; j < end; j += 32) best = larger(best, word(x[row * columns + j], smallest, (unsigned)j));
        best = warp_largest(best);
        if (lane == 0) {
            if (segments == 1) out[w] = place_of(best);
            else words[w] = best;
        }
    }
}

// One thread per segment of a column; neighbouring threads read neighbouring words.
extern "C" __global__ void arg_columns(
    const float* __restrict__ x, unsigned* __restrict__ out, unsigned long long* __restrict__ words,
    unsigned long long outer, unsigned long long rows, unsigned long long inner, unsigned long long segments, unsigned long long length, int smallest) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < outer * segments * inner; i += step) {
        const unsigned long long column = i % inner, segment = i / inner % segments, o = i / inner / segments;
        const unsigned long long start = segment * length;
        const unsigned long long end = start + length < rows ? start + length : rows;
        unsigned long long best = 0;
        #pragma unroll 8
        for (unsigned long long r = start; r < end; ++r) best = larger(best, word(x[(o * rows + r) * inner + column], smallest, (unsigned)r));
        if (segments == 1) out[i] = place_of(best);
        else words[i] = best;
    }
}

// One warp per result, over the words of its segments.
extern "C" __global__ void arg_words(
    const unsigned long long* __restrict__ words, unsigned* __restrict__ out,
    unsigned long long outer, unsigned long long segments, unsigned long long inner) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned long long warps = (unsigned long long)gridDim.x * (blockDim.x / 32);
    for (unsigned long long i = blockIdx.x * (unsigned long long)(blockDim.x / 32) + threadIdx.x / 32; i < outer * inner; i += warps) {
        const unsigned long long at = i / inner * segments * inner + i % inner;
        unsigned long long best = 0;
        for (unsigned long long s = lane; s < segments; s += 32) best = larger(best, words[at + s * inner]);
        best = warp_largest(best);
        if (lane == 0) out[i] = place_of(best);
    }
}

// out[o, place, i] = x[o, i], where out is zero already. One thread per place; one outside is left out.
extern "C" __global__ void place(
    const float* __restrict__ x, const unsigned* __restrict__ places, float* __restrict__ out,
    unsigned long long outer, unsigned long long rows, unsigned long long inner) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < outer * inner; i += step) {
        const unsigned long long r = places[i];
        if (r < rows) out[(i / inner * rows + r) * inner + i % inner] = x[i];
    }
}

// out[o, i] = x[o, place, i], or 0 for a place outside. One thread per result.
extern "C" __global__ void pick(
    const float* __restrict__ x, const unsigned* __restrict__ places, float* __restrict__ out,
    unsigned long long outer, unsigned long long rows, unsigned long long inner) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < outer * inner; i += step) {
        const unsigned long long r = places[i];
        out[i] = r < rows ? x[(i / inner * rows + r) * inner + i % inner] : 0.0f;
    }
}
