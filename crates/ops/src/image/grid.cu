// Reading images at the places of a grid, and the gradients by images and grid.
//
// This text is compiled after `#define` lines and device functions:
//   RANK      axes of an image, 2 or 3
//   WIDTH     elements that a place reads along an axis
//   TAPS      WIDTH to the power of RANK
//   BOUND     what an element beyond the image is, one of the constants below
//   place, slope, base, rest       of a number of the grid: its place and the slope of it, and the parts of a place
//   weight<A, MORE, K>(t, slope)   weight of element K along axis A, differentiated MORE times more
//
// Order of summation: chains of multiply-adds from +0 over the elements of a place in row-major order; over channels in
// order; over all places that read an element in row-major order of places and elements.

typedef unsigned long long u64;

// Channels that a thread makes.
#define CHANNELS 8

#define NOTHING 0          // left out
#define BORDER 1           // the element at the border
#define REFLECT_CENTRES 2  // the image, reflected at the centres of its outer elements
#define REFLECT_EDGES 3    // the image, reflected at its edges

#define NOWHERE 0xffffffffu

#define FURTHEST (1ll << 40)

// Sizes and elements of an image, places of a grid, channels.
struct Sizes { unsigned at[3], image, places, channels; };

// The offset of an element along an axis, or NOWHERE.
__device__ __forceinline__ unsigned element(long long i, unsigned size) {
    const long long n = size;
    if (i >= 0 && i < n) return (unsigned)i;
#if BOUND == BORDER
    return i < 0 ? 0 : size - 1;
#elif BOUND == REFLECT_CENTRES
    const long long period = max(2 * (n - 1), 1ll);
    long long m = i % period;
    if (m < 0) m += period;
    return (unsigned)min(min(m, period - m), n - 1);
#elif BOUND == REFLECT_EDGES
    long long m = i % (2 * n);
    if (m < 0) m += 2 * n;
    return (unsigned)min(m, 2 * n - 1 - m);
#else
    return NOWHERE;
#endif
}

template <int A, int MORE, int K = 0>
__device__ __forceinline__ void weights_along(float t, float s, float (&w)[WIDTH]) {
    if constexpr (K < WIDTH) {
        w[K] = weight<A, MORE, K>(t, s);
        weights_along<A, MORE, K + 1>(t, s, w);
    }
}

// What a place reads along each axis.
struct Place {
    unsigned found[RANK][WIDTH];
    float t[RANK], slope[RANK];
};

__device__ __forceinline__ void find(const float* __restrict__ grid, const Sizes& sizes, Place& p) {
#pragma unroll
    for (int a = 0; a < RANK; ++a) {
        const float g = grid[RANK - 1 - a], size = __uint2float_rn(sizes.at[a]);
        const float c = place(g, size);
        p.slope[a] = slope(g, size);
        p.t[a] = rest(c);
        // Places further away than FURTHEST count as that far, NaN counts as 0.
        const float b = base(c);
        const long long first = b != b ? 0 : max(min(__float2ll_rz(b), FURTHEST), -FURTHEST);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) p.found[a][k] = element(first + k, sizes.at[a]);
    }
}

// The weights of a place along all axes, with axis MORE differentiated once more.
template <int MORE, int A = 0>
__device__ __forceinline__ void weights_of(const Place& p, float (&w)[RANK][WIDTH]) {
    if constexpr (A < RANK) {
        weights_along<A, A == MORE ? 1 : 0>(p.t[A], p.slope[A], w[A]);
        weights_of<MORE, A + 1>(p, w);
    }
}

// Calls f(tap, offset, weight) for the elements of a place in row-major order; the offset is NOWHERE beyond the image.
template <class F>
__device__ __forceinline__ void each_tap(const Place& p, const float (&w)[RANK][WIDTH], const Sizes& sizes, const F& f) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
            const float v = __fmul_rn(w[0][i], w[1][j]);
            const bool inside = p.found[0][i] != NOWHERE && p.found[1][j] != NOWHERE;
            const unsigned row = p.found[0][i] * sizes.at[1] + p.found[1][j];
#if RANK == 2
            f(i * WIDTH + j, inside ? row : NOWHERE, v);
#else
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) {
                const bool within = inside && p.found[2][k] != NOWHERE;
                f((i * WIDTH + j) * WIDTH + k, within ? row * sizes.at[2] + p.found[2][k] : NOWHERE, __fmul_rn(v, w[2][k]));
            }
#endif
        }
    }
}

__device__ __forceinline__ void divide(u64 a, unsigned b, u64& q, unsigned& r) {
    q = a <= 0xffffffffull ? (unsigned)a / b : a / b;
    r = (unsigned)(a - q * b);
}

// One place and CHANNELS channels per thread and turn of a grid-stride loop.
extern "C" __global__ void __launch_bounds__(256)
grid_sample(const float* __restrict__ x, const float* __restrict__ grid, float* __restrict__ out, u64 items, Sizes sizes) {
    const unsigned groups = (sizes.channels + CHANNELS - 1) / CHANNELS;
    for (u64 item = blockIdx.x * 256ull + threadIdx.x; item < items; item += gridDim.x * 256ull) {
        u64 rest_of, n;
        unsigned p, group;
        divide(item, sizes.places, rest_of, p);
        divide(rest_of, groups, n, group);
        Place at;
        float w[RANK][WIDTH];
        find(grid + (n * sizes.places + p) * RANK, sizes, at);
        weights_of<-1>(at, w);
        unsigned found[TAPS];
        float weights[TAPS];
        each_tap(at, w, sizes, [&](int tap, unsigned offset, float v) {
            found[tap] = offset;
            weights[tap] = v;
        });
        const unsigned c0 = group * CHANNELS, channels = min(CHANNELS, sizes.channels - c0);
        const float* plane = x + (n * sizes.channels + c0) * sizes.image;
        float* to = out + (n * sizes.channels + c0) * sizes.places + p;
        for (unsigned c = 0; c < channels; ++c, plane += sizes.image, to += sizes.places) {
            float sum = 0.0f;
#pragma unroll
            for (int tap = 0; tap < TAPS; ++tap)
                if (found[tap] != NOWHERE) sum = __fmaf_rn(weights[tap], plane[found[tap]], sum);
            *to = sum;
        }
    }
}

template <int A = 0>
__device__ __forceinline__ void slopes(const Place& at, const Sizes& sizes, const float* plane, const float* dy, float* to) {
    if constexpr (A < RANK) {
        float w[RANK][WIDTH];
        weights_of<A>(at, w);
        float sum = 0.0f;
        for (unsigned c = 0; c < sizes.channels; ++c) {
            float slope = 0.0f;
            each_tap(at, w, sizes, [&](int, unsigned offset, float v) {
                if (offset != NOWHERE) slope = __fmaf_rn(v, plane[(u64)c * sizes.image + offset], slope);
            });
            sum = __fmaf_rn(slope, dy[(u64)c * sizes.places], sum);
        }
        to[RANK - 1 - A] = sum;
        slopes<A + 1>(at, sizes, plane, dy, to);
    }
}

// One place per thread.
extern "C" __global__ void __launch_bounds__(128)
grid_bwd(const float* __restrict__ x, const float* __restrict__ grid, const float* __restrict__ dy, float* __restrict__ out,
         u64 items, Sizes sizes) {
    const u64 item = blockIdx.x * 128ull + threadIdx.x;
    if (item >= items) return;
    u64 n;
    unsigned p;
    divide(item, sizes.places, n, p);
    Place at;
    find(grid + item * RANK, sizes, at);
    slopes(at, sizes, x + n * sizes.channels * sizes.image, dy + n * sizes.channels * sizes.places + p, out + item * RANK);
}

// For each element of each place: the cell of all images it is, or `cells`, and its weight. One place per thread.
extern "C" __global__ void __launch_bounds__(256)
grid_keys(const float* __restrict__ grid, unsigned* __restrict__ keys, float* __restrict__ weights, u64 places, unsigned cells,
          Sizes sizes) {
    for (u64 item = blockIdx.x * 256ull + threadIdx.x; item < places; item += gridDim.x * 256ull) {
        u64 n;
        unsigned p;
        divide(item, sizes.places, n, p);
        Place at;
        float w[RANK][WIDTH];
        find(grid + item * RANK, sizes, at);
        weights_of<-1>(at, w);
        each_tap(at, w, sizes, [&](int tap, unsigned offset, float v) {
            keys[item * TAPS + tap] = offset == NOWHERE ? cells : (unsigned)n * sizes.image + offset;
            weights[item * TAPS + tap] = v;
        });
    }
}

// The sums of one cell and CHANNELS channels per thread. Sorting kept the elements of a cell in their order.
extern "C" __global__ void __launch_bounds__(256)
grid_sums(const float* __restrict__ dy, const unsigned* __restrict__ keys, const unsigned* __restrict__ order,
          const float* __restrict__ weights, float* __restrict__ out, u64 items, unsigned sources, unsigned cells, Sizes sizes) {
    for (u64 item = blockIdx.x * 256ull + threadIdx.x; item < items; item += gridDim.x * 256ull) {
        u64 group, n;
        unsigned cell, within;
        divide(item, cells, group, cell);
        divide(cell, sizes.image, n, within);
        unsigned low = 0, high = sources;
        while (low < high) {
            const unsigned middle = low + (high - low) / 2;
            if (keys[middle] < cell) low = middle + 1; else high = middle;
        }
        const unsigned c0 = (unsigned)group * CHANNELS, channels = min(CHANNELS, sizes.channels - c0);
        const float* const from = dy + (n * sizes.channels + c0) * sizes.places;
        float sum[CHANNELS];
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) sum[c] = 0.0f;
        for (; low < sources && keys[low] == cell; ++low) {
            const unsigned source = order[low];
            const unsigned p = source / TAPS - (unsigned)n * sizes.places;
            const float w = weights[source];
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c)
                if (c < channels) sum[c] = __fmaf_rn(w, from[(u64)c * sizes.places + p], sum[c]);
        }
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c)
            if (c < channels) out[(n * sizes.channels + c0 + c) * sizes.image + within] = sum[c];
    }
}
