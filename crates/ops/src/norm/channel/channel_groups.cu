// The statistics of groups, from the sums of their chunks. A block takes 32 groups, one per lane.

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

#else

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

#endif
