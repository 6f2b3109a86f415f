// Copies that rearrange elements. `divide` turns linear positions into coordinates.

// Dimensions of axes, and their strides in the input and in the value. MOST_AXES is the host's MAX_RANK.
enum { MOST_AXES = 10 };

struct Others {
    unsigned long long dims[MOST_AXES], from[MOST_AXES], to[MOST_AXES];
};

// A permutation that moves the last axis. The input's last axis has `a` elements, `to_a` words apart in the value. The
// value's last axis has `b` elements, `from_b` words apart in the input. A block of 256 threads takes four consecutive
// tiles of 1024 elements, each `ta` along a and 1024 / ta along b. Threads read along a and write along b. The tile
// passes through shared memory, which is padded against bank conflicts. 4 bytes read and 4 written per element.
extern "C" __global__ void __launch_bounds__(256) permute_tiles(const float* __restrict__ in, float* __restrict__ out, unsigned long long a, unsigned long long b,
                                                                unsigned long long from_b, unsigned long long to_a, Others others, unsigned rank, unsigned ta,
                                                                unsigned long long tiles) {
    __shared__ float tile[1024 + 32];
    const unsigned tb = 1024 / ta, la = __ffs(ta) - 1, lb = 10 - la;
    const unsigned pitch_a = ta <= 32 ? tb + 32 / ta : 1, pitch_b = ta <= 32 ? 1 : ta + 32 / tb;
    const unsigned long long tiles_a = (a + ta - 1) / ta, strips = (b + 4ull * tb - 1) / (4ull * tb);
    for (unsigned long long t = blockIdx.x; t < tiles; t += gridDim.x) {
        unsigned long long rest, ia, ib, c;
        divide(t, tiles_a, rest, ia);
        divide(rest, strips, rest, ib);
        const float* src = in;
        float* dst = out;
        for (unsigned axis = rank; axis-- > 0;) {
            divide(rest, others.dims[axis], rest, c);
            src += c * others.from[axis];
            dst += c * others.to[axis];
        }
        const unsigned long long a0 = ia * ta;
        for (unsigned turn = 0; turn < 4; ++turn) {
            const unsigned long long b0 = (ib * 4 + turn) * tb;
            if (b0 >= b) break;
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                const unsigned at = threadIdx.x + i * 256, x = at & (ta - 1), y = at >> la;
                if (a0 + x < a && b0 + y < b) tile[x * pitch_a + y * pitch_b] = src[(b0 + y) * from_b + a0 + x];
            }
            __syncthreads();
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                const unsigned at = threadIdx.x + i * 256, y = at & (tb - 1), x = at >> lb;
                if (a0 + x < a && b0 + y < b) dst[(a0 + x) * to_a + b0 + y] = tile[x * pitch_a + y * pitch_b];
            }
            __syncthreads();
        }
    }
}

// Slices and pads along one axis of a value seen as (outer, size, inner): `len` elements of the axis, from `start` in
// steps of `step`. One thread per word (or vector of four) of the result in a grid-stride loop; accesses are coalesced.

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
__device__ __forceinline__ void pad_axis(const T* in, T* out, T value, unsigned long long total, unsigned long long size, unsigned long long inner,
                                         unsigned long long start, unsigned long long len, unsigned long long step) {
    for (unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; at < total; at += (unsigned long long)gridDim.x * blockDim.x) {
        unsigned long long row, i, o, j, k, rest = 1;
        divide(at, inner, row, i);
        divide(row, size, o, j);
        if (j >= start) divide(j - start, step, k, rest);
        out[at] = rest == 0 && k < len ? in[(o * len + k) * inner + i] : value;
    }
}

#define RUN_KERNELS(T, width, spread)                                                                                                         \
    extern "C" __global__ void slice_axis##width(const T* __restrict__ in, T* __restrict__ out, unsigned long long total, unsigned long long size, \
                                                 unsigned long long inner, unsigned long long start, unsigned long long len, unsigned long long step) { \
        slice_axis<T>(in, out, total, size, inner, start, len, step);                                                                        \
    }                                                                                                                                        \
    extern "C" __global__ void pad_axis##width(const T* __restrict__ in, T* __restrict__ out, unsigned long long total, unsigned long long size, \
                                               unsigned long long inner, unsigned long long start, unsigned long long len, unsigned long long step, \
                                               float value) { \
        pad_axis<T>(in, out, spread, total, size, inner, start, len, step);                                                                    \
    }

RUN_KERNELS(float, 1, value)
RUN_KERNELS(float4, 4, make_float4(value, value, value, value))

// Concatenation along one axis: each input is `outer` rows of `words`, copied to `start` in rows of `pitch`. blockIdx.y
// is the input; one thread per word or vector in a grid-stride loop.
struct Parts {
    unsigned long long in[32], words[32], start[32];
};

template <typename T>
__device__ __forceinline__ void concat(const Parts& parts, T* out, unsigned long long outer, unsigned long long pitch) {
    const T* in = reinterpret_cast<const T*>(parts.in[blockIdx.y]);
    const unsigned long long words = parts.words[blockIdx.y], start = parts.start[blockIdx.y];
    for (unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; at < outer * words; at += (unsigned long long)gridDim.x * blockDim.x) {
        unsigned long long o, i;
        divide(at, words, o, i);
        out[o * pitch + start + i] = in[at];
    }
}

// Reverses the axes whose bit is set in `mask`. There are `rank` axes of `dims`.
struct Dims {
    unsigned long long dims[MOST_AXES];
};

template <typename T>
__device__ __forceinline__ void flip(const T* in, T* out, unsigned long long total, Dims dims, unsigned rank, unsigned mask) {
    for (unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; at < total; at += (unsigned long long)gridDim.x * blockDim.x) {
        unsigned long long rest = at, from = 0, stride = 1, c;
        for (unsigned axis = rank; axis-- > 0;) {
            const unsigned long long d = dims.dims[axis];
            divide(rest, d, rest, c);
            from += (mask >> axis & 1 ? d - 1 - c : c) * stride;
            stride *= d;
        }
        out[at] = in[from];
    }
}

// Triangles of matrices of `rows` x `columns`. Elements with column - row <= shift stay (or >= shift, for the upper
// triangle); the others become zero.
extern "C" __global__ void triangle(const float* __restrict__ in, float* __restrict__ out, unsigned long long total, unsigned long long rows,
                                    unsigned long long columns, long long shift, int upper) {
    for (unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; at < total; at += (unsigned long long)gridDim.x * blockDim.x) {
        unsigned long long row, column, matrix, i;
        divide(at, columns, row, column);
        divide(row, rows, matrix, i);
        const long long right = (long long)column - (long long)i;
        out[at] = (upper ? right >= shift : right <= shift) ? in[at] : 0.0f;
    }
}

#define MOVE_KERNELS(T, width)                                                                                                                    \
    extern "C" __global__ void concat##width(Parts parts, T* __restrict__ out, unsigned long long outer, unsigned long long pitch) {                  \
        concat<T>(parts, out, outer, pitch);                                                                                                        \
    }                                                                                                                                               \
    extern "C" __global__ void flip##width(const T* __restrict__ in, T* __restrict__ out, unsigned long long total, Dims dims, unsigned rank,          \
                                           unsigned mask) {                                                                                         \
        flip<T>(in, out, total, dims, rank, mask);                                                                                                  \
    }

MOVE_KERNELS(float, 1)
MOVE_KERNELS(float4, 4)
