// Normalisation of channels of (N, C, S). This text is compiled after `#define` lines:
//   CHUNK, ROWS        constants of the sum trees
//   LANES, PER_LANE    lanes that sum one chunk, and elements of a lane
//   VECTOR             elements per access
//   BATCH              1: a group is one channel of all samples; 0: neighbouring channels of one sample
//   SINGLE             1: S is 1
//   AFFINE             0: none, 1: gain, 2: gain and shift
//   WIDE               1: there are 2^32 elements or more
//   BACKWARD           1: the gradient kernels
//   RUN_WARPS          0: elements of the gradient are taken as they come; 1 or 8: so many warps of a block have a run, and leave its largest
//                      magnitude
// The column rule and the formulas come before this text too.

// n samples of c channels of s elements; chunks per run; chunks in total; groups; runs per group; groups per sample.
struct Shape { u64 n, c, s, chunks, leaves, groups, runs, per_sample; };
// 1 / length of a full chunk, 1 / length of a run's last chunk, 1 / elements of a group, eps.
struct Factors { float whole, tail, group, eps; };

// Of one chunk: sum of x, sum of squares about the chunk's mean, sum of dy, sum of dy (x - mean); its mean and length.
struct Leaf { float a, q, b, p, m, len; };

// A chunk in memory: of which run, whether it is the run's last, and its sums as `leaves` has written them. A run of one element has no sums.
struct Chunk {
    u64 piece;
    bool last;
#ifdef BACKWARD
    float4 sums;
#else
    float2 sums;
#endif

    __device__ __forceinline__ Leaf leaf(const Shape& shape, const Factors& by) const {
        Leaf l;
        l.a = sums.x;
        l.q = SINGLE ? 0.0f : sums.y;
#ifdef BACKWARD
        l.b = SINGLE ? sums.y : sums.z;
        l.p = SINGLE ? 0.0f : sums.w;
#else
        l.b = l.p = 0.0f;
#endif
        l.len = SINGLE ? 1.0f : last ? (float)(unsigned)(shape.s - (shape.chunks - 1) * CHUNK) : (float)CHUNK;
        l.m = SINGLE ? l.a : __fmul_rn(l.a, last ? by.tail : by.whole);
        return l;
    }
};

// Numbers and indices of elements. The division of 32 bits is many times shorter, and has no branch, so loads behind it need not wait.
#if WIDE
typedef u64 Count;
#else
typedef unsigned Count;
#endif
__device__ __forceinline__ u64 divided(u64 x, u64 by) { return (Count)x / (Count)by; }
__device__ __forceinline__ u64 remainder_of(u64 x, u64 by) { return (Count)x % (Count)by; }

// The first run of a group, how far its runs are apart, the group of a run, and its channel.
__device__ __forceinline__ u64 first_run(u64 group, const Shape& shape) { return BATCH ? group : group * shape.runs; }
__device__ __forceinline__ u64 between_runs(const Shape& shape) { return BATCH ? shape.c : 1; }

__device__ __forceinline__ u64 group_of(u64 piece, const Shape& shape) {
    return BATCH ? remainder_of(piece, shape.c) : divided(piece, shape.runs);
}

__device__ __forceinline__ u64 channel_of(u64 piece, u64 group, const Shape& shape) { return BATCH ? group : remainder_of(piece, shape.c); }

#if !SINGLE

// Sums over LANES lanes of T numbers, by halving. Lanes from LANES / T * t on get that of number t. The other lanes of the warp would only
// add +0.
template <int T> __device__ __forceinline__ float lanes_sums(float (&s)[T]) {
    int have = T;
    #pragma unroll
    for (int o = LANES / 2; o > 0; o /= 2) {
        if (have > 1) {
            have /= 2;
            const bool upper = threadIdx.x & o;
            #pragma unroll
            for (int i = 0; i < T; ++i) {
                if (i >= have) continue;
                const float other = __shfl_xor_sync(~0u, upper ? s[i] : s[i + have], o);
                s[i] = __fadd_rn(upper ? s[i + have] : s[i], other);
            }
        } else {
            s[0] = __fadd_rn(s[0], __shfl_xor_sync(~0u, s[0], o));
        }
    }
    return s[0];
}

// Loads that stay where they are written, so that all of a chunk are under way before the first sum; 0 unless `in`.
__device__ __forceinline__ float load_now(const float* at) {
    float v;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(at));
    return v;
}
__device__ __forceinline__ float load_now(const float* at, bool in) {
    float v = 0.0f;
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.f32 %0, [%1];}" : "+f"(v) : "l"(at), "r"((unsigned)in));
    return v;
}

// T chunks that LANES lanes hold in registers: element lane + LANES q of each is v[..][q] of x, and g[..][q] of dy. They are `apart` from each
// other, and equally long; the first `live` of them are there.
template <int T> struct Held {
    u64 at, apart;
    unsigned live, len;
    float inverse;  // 1 / len
    float v[T][PER_LANE];
#ifdef BACKWARD
    float g[T][PER_LANE];
#endif

    // f(t, q, in) for every element, which is there if `in`. With FULL all are.
    template <bool FULL, class F> __device__ __forceinline__ void each(F f) const {
        const unsigned lane = threadIdx.x % LANES;
        #pragma unroll
        for (unsigned t = 0; t < T; ++t)
            #pragma unroll
            for (unsigned q = 0; q < PER_LANE; ++q) {
                // Where lanes have several elements, the warp has one chunk: what is beyond its end is skipped for all lanes.
                if (!FULL && T == 1 && q % 8 == 0 && q > 0 && LANES * q >= len) break;
                f(t, q, FULL || (t < live && lane + LANES * q < len));
            }
    }

    // Loads them and sums them up. Lanes from LANES / T * t on get the sums of chunk t.
    template <bool FULL> __device__ __forceinline__ decltype(Chunk::sums) sums(const float* x, const float* dy) {
        const unsigned lane = threadIdx.x % LANES;
        const auto load = [&](float (&to)[T][PER_LANE], const float* from) {
            each<FULL>([&](unsigned t, unsigned q, bool in) {
                const float* const place = from + at + t * apart + lane + LANES * q;
                to[t][q] = FULL ? load_now(place) : load_now(place, in);
            });
        };
        load(v, x);
#ifdef BACKWARD
        load(g, dy);
#endif
        float a[T] = {};
        each<FULL>([&](unsigned t, unsigned q, bool in) { if (in) a[t] = __fadd_rn(a[t], v[t][q]); });
        const float sum = lanes_sums(a);
        float m[T];
        #pragma unroll
        for (unsigned t = 0; t < T; ++t) m[t] = __fmul_rn(__shfl_sync(~0u, sum, LANES / T * t, LANES), inverse);
        float squares[T] = {}, b[T] = {}, p[T] = {};
        each<FULL>([&](unsigned t, unsigned q, bool in) {
            if (!in) return;
            const float d = __fsub_rn(v[t][q], m[t]);
            squares[t] = __fadd_rn(squares[t], __fmul_rn(d, d));
#ifdef BACKWARD
            b[t] = __fadd_rn(b[t], g[t][q]);
            p[t] = __fadd_rn(p[t], __fmul_rn(g[t][q], d));
#endif
        });
#ifdef BACKWARD
        const float of_squares = lanes_sums(squares), of_b = lanes_sums(b);
        return make_float4(sum, of_squares, of_b, lanes_sums(p));
#else
        return make_float2(sum, lanes_sums(squares));
#endif
    }
};

// Sums of all chunks. 4 bytes read per element, 8 with dy.
extern "C" __global__ void __launch_bounds__(256) leaves(decltype(Chunk::sums)* __restrict__ sums, const float* __restrict__ x, const float* __restrict__ dy, Shape shape, Factors by) {
    const u64 step = (u64)gridDim.x * (256 / LANES), runs = shape.n * shape.c;
    // Shuffles need the whole warp, so all its lanes stay in the loop.
    for (u64 base = blockIdx.x * (u64)(256 / LANES); base < shape.leaves; base += step) {
        // Whole chunks of all runs come first, so that the warps of a block have equally much to do.
        const u64 at = base + threadIdx.x / LANES, k = divided(at, runs), piece = at - k * runs;
        const bool live = at < shape.leaves, last = k + 1 == shape.chunks;
        Held<1> chunk;
        chunk.at = piece * shape.s + k * CHUNK;
        chunk.apart = 0;
        chunk.live = live;
        chunk.len = last ? (unsigned)(shape.s - k * CHUNK) : CHUNK;
        chunk.inverse = last ? by.tail : by.whole;
        const bool full = __all_sync(~0u, live && chunk.len == LANES * PER_LANE);
        const auto of = full ? chunk.sums<true>(x, dy) : chunk.sums<false>(x, dy);
        if (live && threadIdx.x % LANES == 0) sums[piece * shape.chunks + k] = of;
    }
}

#endif

#ifndef BACKWARD

// Forward. 4 bytes read and 4 written per element.
extern "C" __global__ void __launch_bounds__(256) normalize(float* __restrict__ out, const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ beta, const float* __restrict__ stats, Shape shape, Factors by) {
    const u64 run = shape.s / VECTOR, items = shape.n * shape.c * run;
    for (u64 item = blockIdx.x * 256ull + threadIdx.x; item < items; item += gridDim.x * 256ull) {
        const u64 piece = SINGLE ? item : divided(item, run);
        const u64 group = group_of(piece, shape), c = channel_of(piece, group, shape);
        const float mean = stats[group], r = stats[shape.groups + group];
        float v[VECTOR];
#if VECTOR == 4
        const float4 f = reinterpret_cast<const float4*>(x)[item];
        v[0] = f.x; v[1] = f.y; v[2] = f.z; v[3] = f.w;
#else
        v[0] = x[item];
#endif
        #pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            const float hat = normalized(v[e], mean, r);
            v[e] = AFFINE == 2 ? __fmaf_rn(hat, gamma[c], beta[c]) : AFFINE == 1 ? __fmul_rn(hat, gamma[c]) : hat;
        }
#if VECTOR == 4
        reinterpret_cast<float4*>(out)[item] = make_float4(v[0], v[1], v[2], v[3]);
#else
        out[item] = v[0];
#endif
    }
}

#else

__device__ __forceinline__ float gained(float h, const float* __restrict__ gamma, u64 c) {
#if AFFINE
    return __fmul_rn(h, gamma[c]);
#else
    return h;
#endif
}

// The gradient of an element of x, where `of` are mean and 1 / std of its group, mean of h and mean of h x^.
__device__ __forceinline__ float gradient_of(float x, float dy, const float* __restrict__ gamma, u64 c, float4 of) {
    return input_gradient(gained(dy, gamma, c), of.z, normalized(x, of.x, of.y), of.w, of.y);
}

#if RUN_WARPS
#define RUN_PARAM , unsigned* magnitudes
#else
#define RUN_PARAM
#endif

// Gradient of x. 8 bytes read and 4 written per element.
extern "C" __global__ void __launch_bounds__(256) gradients(float* __restrict__ dx, const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ dy, const float* __restrict__ stats, Shape shape, Factors by RUN_PARAM) {
#if RUN_WARPS
    constexpr unsigned TOGETHER = 32 * RUN_WARPS;
    const Count run = shape.s / VECTOR, runs = shape.n * shape.c, piece = blockIdx.x * (256 / TOGETHER) + threadIdx.x / TOGETHER;
    const Count known = min(piece, runs - 1), group = group_of(known, shape), c = channel_of(known, group, shape);
    const float4 of = *reinterpret_cast<const float4*>(stats + 4 * group);
    float largest = 0.0f;
    #pragma unroll 4
    for (Count item = piece * run + threadIdx.x % TOGETHER; item < (piece < runs ? (piece + 1) * run : 0); item += TOGETHER) {
#else
    const u64 run = shape.s / VECTOR, items = shape.n * shape.c * run;
    for (u64 item = blockIdx.x * 256ull + threadIdx.x; item < items; item += gridDim.x * 256ull) {
        const u64 piece = SINGLE ? item : divided(item, run);
        const u64 group = group_of(piece, shape), c = channel_of(piece, group, shape);
        const float4 of = *reinterpret_cast<const float4*>(stats + 4 * group);
#endif
        float v[VECTOR], g[VECTOR];
#if VECTOR == 4
        const float4 f = reinterpret_cast<const float4*>(x)[item];
        v[0] = f.x; v[1] = f.y; v[2] = f.z; v[3] = f.w;
        const float4 h = reinterpret_cast<const float4*>(dy)[item];
        g[0] = h.x; g[1] = h.y; g[2] = h.z; g[3] = h.w;
#else
        v[0] = x[item];
        g[0] = dy[item];
#endif
        #pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            v[e] = gradient_of(v[e], g[e], gamma, c, of);
#if RUN_WARPS
            largest = larger(largest, v[e]);
#endif
        }
#if VECTOR == 4
        reinterpret_cast<float4*>(dx)[item] = make_float4(v[0], v[1], v[2], v[3]);
#else
        dx[item] = v[0];
#endif
    }
#if RUN_WARPS
    leave_magnitude<RUN_WARPS>(largest, magnitudes + piece, piece < runs);
#endif
}

#endif
