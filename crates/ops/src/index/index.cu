// Gathers and scatters. A value is seen as (outer, size, inner); `inner` counts vectors of four words where rows
// are divisible by four.

__device__ __forceinline__ float zero(float) { return 0.0f; }
__device__ __forceinline__ float4 zero(float4) { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
// PRODUCT: sources are multiplied with what is at their places, instead of added to it.
#ifdef PRODUCT
__device__ __forceinline__ float plus(float a, float b) { return __fmul_rn(a, b); }
#else
__device__ __forceinline__ float plus(float a, float b) { return __fadd_rn(a, b); }
#endif
__device__ __forceinline__ float4 plus(float4 a, float4 b) { return make_float4(plus(a.x, b.x), plus(a.y, b.y), plus(a.z, b.z), plus(a.w, b.w)); }

// out[o, j, i] = in[o, index[j], i], zero where the index is not below `size`. One thread per word or vector of the
// result in a grid-stride loop; accesses are coalesced.
template <typename T>
__device__ __forceinline__ void take(const T* in, const unsigned* index, T* out, unsigned long long total, unsigned long long size, unsigned long long count,
                                     unsigned long long inner) {
    for (unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; at < total; at += (unsigned long long)gridDim.x * blockDim.x) {
        unsigned long long row, i, o, j;
        divide(at, inner, row, i);
        divide(row, count, o, j);
        const unsigned from = index[j];
        out[at] = from < size ? in[(o * size + from) * inner + i] : zero(T());
    }
}

// out[o, j, i] = in[o, index[o, j, i], i], zero where the index is not below `size`.
extern "C" __global__ void take_along(const float* __restrict__ in, const unsigned* __restrict__ index, float* __restrict__ out, unsigned long long total,
                                      unsigned long long size, unsigned long long count, unsigned long long inner) {
    for (unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; at < total; at += (unsigned long long)gridDim.x * blockDim.x) {
        unsigned long long row, i, o, j;
        divide(at, inner, row, i);
        divide(row, count, o, j);
        const unsigned from = index[at];
        out[at] = from < size ? in[(o * size + from) * inner + i] : 0.0f;
    }
}

// The row of the result that each source is added to: (o * size + index) * inner + i for a source at (o, j, i) of
// (outer, count, inner); `none` where the index is not below `size`.
extern "C" __global__ void add_keys(const unsigned* __restrict__ index, unsigned* __restrict__ keys, unsigned long long total, unsigned long long size,
                                    unsigned long long count, unsigned long long inner, unsigned none) {
    for (unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; at < total; at += (unsigned long long)gridDim.x * blockDim.x) {
        unsigned long long row, i, o, j;
        divide(at, inner, row, i);
        divide(row, count, o, j);
        const unsigned to = index[at];
        keys[at] = to < size ? (unsigned)((o * size + to) * inner + i) : none;
    }
}

// The first position in the sorted `keys[0..n)` whose key is not below `want`. A warp searches 32 positions at a time,
// so each step leaves 1 / 32 of the range.
__device__ __forceinline__ unsigned first_not_below(const unsigned* keys, unsigned n, unsigned want) {
    const unsigned lane = threadIdx.x % 32;
    unsigned low = 0, high = n;
    while (low < high) {
        const unsigned long long span = high - low;
        const unsigned at = low + (unsigned)(span * lane / 32);
        const unsigned below = __popc(__ballot_sync(0xffffffffu, keys[at] < want));
        if (below == 0) return low;
        const unsigned start = low;
        low = start + (unsigned)(span * (below - 1) / 32) + 1;
        if (below < 32) high = start + (unsigned)(span * below / 32);
    }
    return low;
}

// Each row of the result is the row of `base` (zero without one) plus its sources, added one after another in
// increasing order. `order` lists the sources sorted by their row, and `keys` those rows.
//
// A block of 256 threads computes `per` neighbouring rows. It finds their sources once, then writes the rows front to
// back with coalesced accesses, rows without sources too. So the result is written once, and only the sources and the
// base are read. The additions to one element are sequential; sixteen loads overlap. blockIdx.y counts outer,
// blockIdx.z pieces of `wide` columns.
template <typename T>
__device__ __forceinline__ void add_rows(const T* src, const unsigned* keys, const unsigned* order, const T* base, T* out, unsigned count, unsigned rows,
                                         unsigned long long inner, unsigned long long outer, unsigned per, unsigned wide) {
    __shared__ unsigned bounds[2];
    __shared__ unsigned starts[257];
    const unsigned r0 = blockIdx.x * per, made = min(per, rows - r0), warp = threadIdx.x / 32;
    if (warp < 2) {
        const unsigned at = first_not_below(keys, count, warp ? r0 + made : r0);
        if (threadIdx.x % 32 == 0) bounds[warp] = at;
    }
    __syncthreads();
    for (unsigned t = threadIdx.x; t <= made; t += 256) {
        unsigned low = bounds[0], high = bounds[1];
        while (low < high) {
            const unsigned middle = low + (high - low) / 2;
            if (keys[middle] < r0 + t) low = middle + 1; else high = middle;
        }
        starts[t] = low;
    }
    __syncthreads();
    const unsigned long long c0 = blockIdx.z * (unsigned long long)wide;
    const unsigned columns = (unsigned)min((unsigned long long)wide, inner - c0);
    for (unsigned long long o = blockIdx.y; o < outer; o += gridDim.y) {
        const unsigned long long to = (o * rows + r0) * inner + c0;
        const T* from = src + o * count * inner + c0;
        for (unsigned at = threadIdx.x; at < made * columns; at += 256) {
            const unsigned r = at / columns, c = at - r * columns;
            T sum = base ? base[to + r * inner + c] : zero(T());
            unsigned s = starts[r];
            const unsigned end = starts[r + 1];
            for (; s + 16 <= end; s += 16) {
                T x[16];
#pragma unroll
                for (unsigned u = 0; u < 16; ++u) x[u] = from[order[s + u] * inner + c];
#pragma unroll
                for (unsigned u = 0; u < 16; ++u) sum = plus(sum, x[u]);
            }
            for (; s < end; ++s) sum = plus(sum, from[order[s] * inner + c]);
            out[to + r * inner + c] = sum;
        }
    }
}

// out[o, index[o, j, i], i] += src[o, j, i] for all j in order. `out` already holds the base. A thread owns a column
// (o, i), so no two threads touch one element.
extern "C" __global__ void add_columns(const float* __restrict__ src, const unsigned* __restrict__ index, float* out, unsigned long long total,
                                       unsigned long long size, unsigned long long count, unsigned long long inner) {
    for (unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; at < total; at += (unsigned long long)gridDim.x * blockDim.x) {
        unsigned long long o, i;
        divide(at, inner, o, i);
        for (unsigned long long j = 0; j < count; ++j) {
            const unsigned long long from = (o * count + j) * inner + i;
            const unsigned to = index[from];
            if (to < size) {
                float* y = out + (o * size + to) * inner + i;
                *y = plus(*y, src[from]);
            }
        }
    }
}

// out[o, index[o, j]] += src[o, j] for all j in order, for rows of `size` elements; from `base`, or from zero without one. A warp
// has a row of the result in shared memory, and takes 32 sources at a time: lanes with one place, which they find by votes on the
// `bits` of places, take turns from the lowest on. 8 bytes read per source, at most 8 moved per element of the result.
extern "C" __global__ void __launch_bounds__(256) add_shared(const float* __restrict__ src, const unsigned* __restrict__ index, const float* __restrict__ base,
                                                             float* __restrict__ out, unsigned outer, unsigned size, unsigned count, unsigned bits) {
    extern __shared__ float rows[];
    const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32, warp = threadIdx.x / 32;
    float* row = rows + warp * size;
    for (unsigned o = blockIdx.x * warps + warp; o < outer; o += gridDim.x * warps) {
        const unsigned long long to = o * (unsigned long long)size, from = o * (unsigned long long)count;
        for (unsigned i = lane; i < size; i += 32) row[i] = base ? base[to + i] : 0.0f;
        __syncwarp();
        for (unsigned j0 = 0; j0 < count; j0 += 32 * 4) {
            unsigned places[4];
            float x[4];
#pragma unroll
            for (unsigned u = 0; u < 4; ++u) {
                const unsigned j = j0 + u * 32 + lane;
                places[u] = j < count ? index[from + j] : 0xffffffffu;
                x[u] = j < count ? src[from + j] : 0.0f;
            }
#pragma unroll
            for (unsigned u = 0; u < 4; ++u) {
                const unsigned place = places[u];
                const bool there = place < size;
                unsigned peers = __ballot_sync(0xffffffffu, there);
                for (unsigned bit = 0; bit < bits; ++bit) {
                    const bool set = place >> bit & 1u;
                    const unsigned votes = __ballot_sync(0xffffffffu, set);
                    peers &= set ? votes : ~votes;
                }
                const unsigned turn = __popc(peers & ((1u << lane) - 1));
                for (unsigned now = 0; __any_sync(0xffffffffu, there && turn >= now); ++now) {
                    if (there && turn == now) row[place] = plus(row[place], x[u]);
                    __syncwarp();
                }
            }
        }
        for (unsigned i = lane; i < size; i += 32) out[to + i] = row[i];
        __syncwarp();
    }
}

#define ROW_KERNELS(T, width)                                                                                                                      \
    extern "C" __global__ void take##width(const T* __restrict__ in, const unsigned* __restrict__ index, T* __restrict__ out, unsigned long long total,  \
                                           unsigned long long size, unsigned long long count, unsigned long long inner) {                              \
        take<T>(in, index, out, total, size, count, inner);                                                                                          \
    }                                                                                                                                                \
    extern "C" __global__ void __launch_bounds__(256) add_rows##width(                                                                               \
        const T* __restrict__ src, const unsigned* __restrict__ keys, const unsigned* __restrict__ order, const T* __restrict__ base,                   \
        T* __restrict__ out, unsigned count, unsigned rows, unsigned long long inner, unsigned long long outer, unsigned per, unsigned wide) {           \
        add_rows<T>(src, keys, order, base, out, count, rows, inner, outer, per, wide);                                                               \
    }

ROW_KERNELS(float, 1)
ROW_KERNELS(float4, 4)

// Casts and comparisons, one thread per element in a grid-stride loop: 4 bytes read per input, 4 written.
#define EACH(i, total) \
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < total; i += (unsigned long long)gridDim.x * blockDim.x)

extern "C" __global__ void to_float(const unsigned* __restrict__ in, float* __restrict__ out, unsigned, unsigned long long total) {
    EACH(i, total) out[i] = __uint2float_rn(in[i]);
}

// Toward zero; below 0 and NaN give 0, above 2^32 gives the largest u32. `last` is the largest result.
extern "C" __global__ void to_index(const float* __restrict__ in, unsigned* __restrict__ out, unsigned last, unsigned long long total) {
    EACH(i, total) out[i] = min(__float2uint_rz(in[i]), last);
}

extern "C" __global__ void index_eq(const unsigned* __restrict__ a, const unsigned* __restrict__ b, float* __restrict__ out, unsigned, unsigned long long total) {
    EACH(i, total) out[i] = a[i] == b[i] ? 1.0f : 0.0f;
}

// The key of a number: -0 is below +0, NaN above everything. With `smallest`, of its negative, so that the smallest number
// has the largest key and NaN still is above everything.
__device__ __forceinline__ unsigned extreme_key(float x, int smallest) {
    if (x != x) return 0xffffffffu;
    const unsigned b = __float_as_uint(smallest ? -x : x);
    return (b & 0x80000000u) ? ~b : (b | 0x80000000u);
}

// Scatter-extremes: `keys` gets the keys of the base, then the largest key of all sources at each place, then numbers
// again. Integer maxima do not depend on their order.
extern "C" __global__ void extreme_base(const float* __restrict__ base, unsigned* __restrict__ keys, unsigned smallest, unsigned long long total) {
    EACH(i, total) keys[i] = extreme_key(base[i], smallest);
}

extern "C" __global__ void extreme_sources(const float* __restrict__ src, const unsigned* __restrict__ index, unsigned* __restrict__ keys, unsigned long long total,
                                           unsigned long long size, unsigned long long count, unsigned long long inner, unsigned smallest) {
    EACH(at, total) {
        unsigned long long row, i, o, j;
        divide(at, inner, row, i);
        divide(row, count, o, j);
        const unsigned to = index[at];
        if (to < size) atomicMax(keys + ((o * size + to) * inner + i), extreme_key(src[at], smallest));
    }
}

extern "C" __global__ void extreme_numbers(unsigned* keys, unsigned smallest, unsigned long long total) {
    EACH(i, total) {
        const unsigned k = keys[i];
        const float x = __uint_as_float((k & 0x80000000u) ? k ^ 0x80000000u : ~k);
        keys[i] = k == 0xffffffffu ? 0x7fc00000u : __float_as_uint(smallest ? -x : x);
    }
}

// The last source of each place: `last` is zero, then has one more than the largest j of the sources there, then that j,
// or `count` where there is none.
extern "C" __global__ void last_sources(const unsigned* __restrict__ index, unsigned* __restrict__ last, unsigned long long total, unsigned long long size,
                                        unsigned long long count, unsigned long long inner) {
    EACH(at, total) {
        unsigned long long row, i, o, j;
        divide(at, inner, row, i);
        divide(row, count, o, j);
        const unsigned to = index[at];
        if (to < size) atomicMax(last + ((o * size + to) * inner + i), (unsigned)j + 1u);
    }
}

extern "C" __global__ void last_positions(unsigned* last, unsigned count, unsigned long long total) {
    EACH(i, total) last[i] = last[i] ? last[i] - 1u : count;
}

// One step of a flat index: `flat` times `size` plus `index`; all ones once an index is not below its size. `start` is 1
// for the first index.
extern "C" __global__ void flat_index(const unsigned* __restrict__ index, unsigned* flat, unsigned size, int start, int end, unsigned none, unsigned long long total) {
    EACH(i, total) {
        const unsigned before = start ? 0u : flat[i], at = index[i];
        const bool good = before != 0xffffffffu && at < size;
        const unsigned to = good ? before * size + at : 0xffffffffu;
        flat[i] = end && to == 0xffffffffu ? none : to;
    }
}
