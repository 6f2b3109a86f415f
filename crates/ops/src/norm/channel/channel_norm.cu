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

// A chunk of runs that are `stride` apart.
struct ChunkAt {
    const float *sums, *x, *dy;
    Count piece, k, chunks, stride;

    __device__ __forceinline__ Chunk read() const {
        Chunk c;
        c.piece = piece;
        c.last = k + 1 == chunks;
#if !SINGLE
        c.sums = reinterpret_cast<const decltype(c.sums)*>(sums)[piece * chunks + k];
#elif defined(BACKWARD)
        c.sums = {x[piece], dy[piece], 0.0f, 0.0f};
#else
        c.sums = {x[piece], 0.0f};
#endif
        return c;
    }
    __device__ __forceinline__ void next() {
        const bool more = !SINGLE && k + 1 < chunks;
        k = more ? k + 1 : 0;
        piece += more ? 0 : stride;
    }
};

// K sums over the chunks of some runs, `stride` apart from `first` on: f(chunk, v) has the terms of one.
template <int K, class F>
__device__ __forceinline__ void over_chunks(u64 first, u64 stride, u64 runs, const Shape& shape, const float* sums, const float* x,
                                            const float* dy, float (*part)[K][33], float (&total)[K], F f) {
    const auto start = [&](u64 l) {
        const u64 i = SINGLE ? l : divided(l, shape.chunks);
        return ChunkAt{sums, x, dy, (Count)(first + i * stride), (Count)(SINGLE ? 0 : l - i * shape.chunks), (Count)shape.chunks, (Count)stride};
    };
    column_sums<K, 16>(SINGLE ? runs : runs * shape.chunks, part, total, start, f);
}

#if !SINGLE

// The sum over LANES lanes, by halving; every lane gets it. The other lanes of the warp would only add +0.
__device__ __forceinline__ float lanes_sum(float s) {
    #pragma unroll
    for (int o = LANES / 2; o > 0; o /= 2) s = __fadd_rn(s, __shfl_down_sync(0xffffffffu, s, o, LANES));
    return __shfl_sync(0xffffffffu, s, 0, LANES);
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

// Sums of a chunk of `len` elements from `at` on, by LANES lanes, which hold it in registers; `inverse`: 1 / len. With FULL there are as many
// elements as the registers have room for; otherwise what is beyond the end is skipped for the whole warp.
template <bool FULL>
__device__ __forceinline__ void leaf_sums(float* to, const float* x, const float* dy, u64 at, unsigned len, float inverse, bool live) {
    const unsigned lane = threadIdx.x % LANES;
    // f(q, in) for element lane + LANES q, which is there if `in`.
    const auto each = [&](auto f) {
        #pragma unroll
        for (unsigned q = 0; q < PER_LANE; ++q) {
            // Where lanes have several elements, the warp has one chunk.
            if (!FULL && q % 8 == 0 && q > 0 && LANES * q >= len) break;
            f(q, FULL || lane + LANES * q < len);
        }
    };
    const auto load = [&](float (&to)[PER_LANE], const float* from) {
        each([&](unsigned q, bool in) { to[q] = FULL ? load_now(from + LANES * q) : load_now(from + LANES * q, in); });
    };
    float v[PER_LANE];
    load(v, x + at + lane);
#ifdef BACKWARD
    float g[PER_LANE];
    load(g, dy + at + lane);
#endif
    float a = 0.0f;
    each([&](unsigned q, bool in) { if (in) a = __fadd_rn(a, v[q]); });
    a = lanes_sum(a);
    const float m = __fmul_rn(a, inverse);
    float squares = 0.0f;
    each([&](unsigned q, bool in) {
        if (!in) return;
        v[q] = __fsub_rn(v[q], m);
        squares = __fadd_rn(squares, __fmul_rn(v[q], v[q]));
    });
    squares = lanes_sum(squares);
#ifdef BACKWARD
    float b = 0.0f, p = 0.0f;
    each([&](unsigned q, bool in) {
        if (!in) return;
        b = __fadd_rn(b, g[q]);
        p = __fadd_rn(p, __fmul_rn(g[q], v[q]));
    });
    b = lanes_sum(b);
    p = lanes_sum(p);
    if (live && lane == 0) *reinterpret_cast<float4*>(to) = make_float4(a, squares, b, p);
#else
    if (live && lane == 0) *reinterpret_cast<float2*>(to) = make_float2(a, squares);
#endif
}

// Sums of all chunks. 4 bytes read per element, 8 with dy.
extern "C" __global__ void __launch_bounds__(256) leaves(float* __restrict__ sums, const float* __restrict__ x, const float* __restrict__ dy, Shape shape, Factors by) {
    constexpr unsigned WORDS = sizeof(Chunk::sums) / 4;
    const u64 step = (u64)gridDim.x * (256 / LANES);
    // Shuffles need the whole warp, so all its lanes stay in the loop.
    for (u64 base = blockIdx.x * (u64)(256 / LANES); base < shape.leaves; base += step) {
        const u64 leaf = base + threadIdx.x / LANES;
        const bool live = leaf < shape.leaves;
        const u64 piece = divided(leaf, shape.chunks);
        const u64 k = leaf - piece * shape.chunks;
        const u64 left = shape.s - k * CHUNK;
        const unsigned len = !live ? 0 : left < CHUNK ? (unsigned)left : CHUNK;
        const float inverse = k + 1 == shape.chunks ? by.tail : by.whole;
        const u64 at = piece * shape.s + k * CHUNK;
        if (__all_sync(~0u, len == LANES * PER_LANE)) leaf_sums<true>(sums + leaf * WORDS, x, dy, at, len, inverse, live);
        else leaf_sums<false>(sums + leaf * WORDS, x, dy, at, len, inverse, live);
    }
}

#endif

// A block takes 32 groups, one per lane.
#define EACH_TILE(count) for (u64 tile = blockIdx.x; tile * 32 < (count); tile += gridDim.x)

#ifndef BACKWARD

extern "C" __global__ void __launch_bounds__(512) groups(float* __restrict__ first, float* __restrict__ second, const float* __restrict__ sums, const float* __restrict__ x, int raw, Shape shape, Factors by) {
    __shared__ float part[ROWS][1][33];
    EACH_TILE(shape.groups) {
        const u64 wanted = tile * 32 + threadIdx.x % 32;
        const u64 group = wanted < shape.groups ? wanted : shape.groups - 1;
        const u64 run = first_run(group, shape), stride = between_runs(shape);
        float of[1];
        over_chunks<1>(run, stride, shape.runs, shape, sums, x, nullptr, part, of, [&](const Chunk& c, float (&v)[1]) { v[0] = c.sums.x; });
        const float mean = __fmul_rn(of[0], by.group);
        over_chunks<1>(run, stride, shape.runs, shape, sums, x, nullptr, part, of, [&](const Chunk& c, float (&v)[1]) {
            const Leaf l = c.leaf(shape, by);
            v[0] = about_mean(l.q, l.len, l.m, mean);
        });
        const float var = __fmul_rn(of[0], by.group);
        if (threadIdx.x < 32 && wanted < shape.groups) {
            first[group] = mean;
            second[group] = raw ? var : inverse_std(var, by.eps);
        }
    }
}

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

// Gradients of gain and shift of channel c: moments(chunk) is mean and 1 / std of a chunk's group.
template <class Moments>
__device__ __forceinline__ void channel_sums(u64 c, const Shape& shape, const Factors& by, const float* sums, const float* x, const float* dy,
                                             float (*part)[2][33], float (&of)[2], Moments moments) {
    over_chunks<2>(c, shape.c, shape.n, shape, sums, x, dy, part, of, [&](const Chunk& chunk, float (&v)[2]) {
        const Leaf l = chunk.leaf(shape, by);
        const float2 m = moments(chunk);
        v[0] = __fmul_rn(moment_about_mean(l.p, l.m, m.x, l.b), m.y);
        v[1] = l.b;
    });
}

// Per group: mean, 1 / std, mean of h and mean of h x^. If a group is a channel also its gradients of gain and shift, where they are wanted.
extern "C" __global__ void __launch_bounds__(512) group_gradients(float* __restrict__ stats, float* __restrict__ dgamma, float* __restrict__ dbeta, const float* __restrict__ sums, const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ dy, Shape shape, Factors by) {
    __shared__ float part[ROWS][2][33];
    EACH_TILE(shape.groups) {
        const u64 wanted = tile * 32 + threadIdx.x % 32;
        const u64 group = wanted < shape.groups ? wanted : shape.groups - 1;
        const u64 run = first_run(group, shape), stride = between_runs(shape);
        float of[2];
        over_chunks<2>(run, stride, shape.runs, shape, sums, x, dy, part, of, [&](const Chunk& c, float (&v)[2]) {
            const Leaf l = c.leaf(shape, by);
            v[0] = l.a;
            v[1] = gained(l.b, gamma, channel_of(c.piece, group, shape));
        });
        const float mean = __fmul_rn(of[0], by.group), sum = of[1];
        over_chunks<2>(run, stride, shape.runs, shape, sums, x, dy, part, of, [&](const Chunk& c, float (&v)[2]) {
            const Leaf l = c.leaf(shape, by);
            v[0] = about_mean(l.q, l.len, l.m, mean);
            v[1] = gained(moment_about_mean(l.p, l.m, mean, l.b), gamma, channel_of(c.piece, group, shape));
        });
        const float r = inverse_std(__fmul_rn(of[0], by.group), by.eps), moment = of[1];
        const bool writes = threadIdx.x < 32 && wanted < shape.groups;
        if (writes) {
            *reinterpret_cast<float4*>(stats + 4 * group) =
                make_float4(mean, r, __fmul_rn(sum, by.group), __fmul_rn(__fmul_rn(moment, r), by.group));
        }
        if (BATCH && dgamma) {
            channel_sums(group, shape, by, sums, x, dy, part, of, [&](const Chunk&) { return make_float2(mean, r); });
            if (writes) {
                dgamma[group] = of[0];
                if (dbeta) dbeta[group] = of[1];
            }
        }
    }
}

#if !BATCH

// Gradients of gain and shift. A block takes 32 channels, one per lane.
extern "C" __global__ void __launch_bounds__(512) channel_gradients(float* __restrict__ dgamma, float* __restrict__ dbeta, const float* __restrict__ stats, const float* __restrict__ sums, const float* __restrict__ x, const float* __restrict__ dy, Shape shape, Factors by) {
    __shared__ float part[ROWS][2][33];
    EACH_TILE(shape.c) {
        const u64 wanted = tile * 32 + threadIdx.x % 32;
        const u64 c = wanted < shape.c ? wanted : shape.c - 1;
        float of[2];
        channel_sums(c, shape, by, sums, x, dy, part, of, [&](const Chunk& chunk) {
            return *reinterpret_cast<const float2*>(stats + 4 * group_of(chunk.piece, shape));
        });
        if (threadIdx.x < 32 && wanted < shape.c) {
            dgamma[c] = of[0];
            if (dbeta) dbeta[c] = of[1];
        }
    }
}

#endif

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
            v[e] = input_gradient(gained(g[e], gamma, c), of.z, normalized(v[e], of.x, of.y), of.w, of.y);
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
