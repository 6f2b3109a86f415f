// Matrix transpose by tiles through shared memory.
//
// Thread mapping: a block of 256 threads moves one 32 x 32 tile per turn, 8 rows at a time; both the
// reads and the writes of a warp are 32 neighbouring words. 4 bytes read and 4 written per element.
// The padding column keeps the transposed reads of the tile on different banks.

extern "C" __global__ void transpose_tiles(
    const float* __restrict__ in, float* __restrict__ out,
    unsigned long long rows, unsigned long long columns,
    unsigned long long down, unsigned long long across, unsigned long long tiles) {
    __shared__ float tile[32][33];
    const unsigned x = threadIdx.x % 32, y = threadIdx.x / 32;
    for (unsigned long long t = blockIdx.x; t < tiles; t += gridDim.x) {
        const unsigned long long batch = t / (down * across), rest = t % (down * across);
        const unsigned long long r0 = rest / across * 32, c0 = rest % across * 32;
        const float* src = in + batch * rows * columns;
        float* dst = out + batch * rows * columns;
        for (unsigned i = y; i < 32; i += 8) {
            if (r0 + i < rows && c0 + x < columns) tile[i][x] = src[(r0 + i) * columns + c0 + x];
        }
        __syncthreads();
        for (unsigned i = y; i < 32; i += 8) {
            if (c0 + i < columns && r0 + x < rows) dst[(c0 + i) * rows + r0 + x] = tile[x][i];
        }
        __syncthreads();
    }
}

// A run along one axis of a value seen as (outer, size, inner): `len` of the axis' elements, from `start` in
// steps of `step`. One thread per word (or vector of four) of the result, grid-stride, neighbouring threads on
// neighbouring words; divisions in 32 bits where they suffice.

__device__ __forceinline__ void divide(unsigned long long a, unsigned long long b, unsigned long long& q, unsigned long long& r) {
    if ((a | b) <= 0xffffffffull) {
        q = (unsigned)a / (unsigned)b;
        r = (unsigned)a - (unsigned)q * (unsigned)b;
    } else {
        q = a / b;
        r = a - q * b;
    }
}

template <typename T>
__device__ __forceinline__ void slice_axis(const T* in, T* out, unsigned long long total, unsigned long long size, unsigned long long inner,
                                           unsigned long long start, unsigned long long len, unsigned long long step) {
    for (unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; at < total; at += (unsigned long long)gridDim.x * blockDim.x) {
        unsigned long long row, i, o, j;
        divide(at, inner, row, i);
        divide(row, len, o, j);
        out[at] = in[(o * size + start + j * step) * inner + i];
    }
}

template <typename T>
__device__ __forceinline__ void pad_axis(const T* in, T* out, T zero, unsigned long long total, unsigned long long size, unsigned long long inner,
                                         unsigned long long start, unsigned long long len, unsigned long long step) {
    for (unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; at < total; at += (unsigned long long)gridDim.x * blockDim.x) {
        unsigned long long row, i, o, j, k, rest = 1;
        divide(at, inner, row, i);
        divide(row, size, o, j);
        if (j >= start) divide(j - start, step, k, rest);
        out[at] = rest == 0 && k < len ? in[(o * len + k) * inner + i] : zero;
    }
}

#define RUN_KERNELS(T, width, zero)                                                                                                          \
    extern "C" __global__ void slice_axis##width(const T* __restrict__ in, T* __restrict__ out, unsigned long long total, unsigned long long size, \
                                                 unsigned long long inner, unsigned long long start, unsigned long long len, unsigned long long step) { \
        slice_axis<T>(in, out, total, size, inner, start, len, step);                                                                        \
    }                                                                                                                                        \
    extern "C" __global__ void pad_axis##width(const T* __restrict__ in, T* __restrict__ out, unsigned long long total, unsigned long long size, \
                                               unsigned long long inner, unsigned long long start, unsigned long long len, unsigned long long step) { \
        pad_axis<T>(in, out, zero, total, size, inner, start, len, step);                                                                    \
    }

RUN_KERNELS(float, 1, 0.0f)
RUN_KERNELS(float4, 4, make_float4(0.0f, 0.0f, 0.0f, 0.0f))
