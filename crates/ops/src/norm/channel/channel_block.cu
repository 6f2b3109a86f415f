// The statistics of batch norm's channels, a block of threads each, and if it can hold its channel in registers, the gradient of x too. More
// lines before this text:
//   WARPS    warps of a block
//   EACH     chunks that a warp sums up at a time; 0: `leaves` has written the sums of all
//   HOLDS    1: these are all chunks of the channel, and the gradient of x follows

// Sums that are found together.
#ifdef BACKWARD
constexpr int TERMS = 2;
#else
constexpr int TERMS = 1;
#endif

// Sums over a channel's chunks by the column rule, of at most ROWS chains. A warp finds them: f(chunk, v) has the terms of one.
struct Column {
    float (*terms)[ROWS + 1];  // [chain * TERMS + term][row]
    const decltype(Chunk::sums)* sums;
    unsigned count, chunks;

    template <class F> __device__ __forceinline__ void sum(const Shape& shape, const Factors& by, float (&total)[TERMS], F f) const {
        const unsigned lane = threadIdx.x, chains = (count + ROWS - 1) / ROWS;
        for (unsigned l = lane; l < count; l += 32) {
            float v[TERMS];
            f(Chunk{0, l % chunks + 1 == chunks, sums[l]}.leaf(shape, by), v);
            #pragma unroll
            for (int k = 0; k < TERMS; ++k) terms[l / ROWS * TERMS + k][l % ROWS] = v[k];
        }
        __syncwarp();
        float s[TERMS] = {};
        const unsigned len = lane < chains ? min(count - lane * ROWS, (unsigned)ROWS) : 0;
        #pragma unroll 8
        for (unsigned r = 0; r < len; ++r)
            #pragma unroll
            for (int k = 0; k < TERMS; ++k) s[k] = __fadd_rn(s[k], terms[lane * TERMS + k][r]);
        __syncwarp();
        #pragma unroll
        for (int k = 0; k < TERMS; ++k) {
            total[k] = 0.0f;
            for (unsigned c = 0; c < chains; ++c) total[k] = __fadd_rn(total[k], __shfl_sync(~0u, s[k], c));
        }
    }
};

#ifndef BACKWARD

// Mean, and 1 / std or if `raw` the variance.
extern "C" __global__ void __launch_bounds__(32 * WARPS) channels(float* __restrict__ first, float* __restrict__ second, const decltype(Chunk::sums)* __restrict__ of_chunks, const float* __restrict__ x, int raw, Shape shape, Factors by) {

#else

// Gradients of gain and shift, where they are wanted, and with HOLDS that of x; otherwise what `gradients` needs for it: mean, 1 / std, mean of h
// and mean of h x^.
extern "C" __global__ void __launch_bounds__(32 * WARPS) channels(float* __restrict__ dx, float4* __restrict__ stats, float* __restrict__ dgamma, float* __restrict__ dbeta, const decltype(Chunk::sums)* __restrict__ of_chunks, const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ dy, Shape shape, Factors by RUN_PARAM) {

#endif
    const unsigned channel = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned runs = (unsigned)shape.n, chunks = (unsigned)shape.chunks, count = runs * chunks;
    extern __shared__ float4 shared[];
    auto* const sums = reinterpret_cast<decltype(Chunk::sums)*>(shared);
    const Column column = {reinterpret_cast<float (*)[ROWS + 1]>(sums + count), sums, count, chunks};
#if EACH == 0
    for (unsigned l = threadIdx.x; l < count; l += 32 * WARPS) {
        const unsigned run = l / chunks;
        sums[l] = of_chunks[((u64)run * shape.c + channel) * chunks + l - run * chunks];
    }
#else
#ifdef BACKWARD
    const float* const other = dy;
#else
    const float* const other = nullptr;
#endif
    Held<EACH> held;
    held.apart = shape.c * shape.s;
    for (unsigned base = warp * EACH; HOLDS || base < count; base += WARPS * EACH) {
        // Where a warp has several chunks, each is all of its run. Otherwise whole chunks of all runs come first, so that the last ones, which are
        // shorter, are taken at the same time.
        const unsigned run = EACH > 1 ? base : base % runs, k = EACH > 1 ? 0 : base / runs;
        const bool last = k + 1 == chunks;
        held.at = run * held.apart + channel * shape.s + k * CHUNK;
        held.live = base < count ? count - base : 0;
        held.len = last ? (unsigned)(shape.s - k * CHUNK) : CHUNK;
        held.inverse = last ? by.tail : by.whole;
        const bool full = EACH == 1 && held.len == LANES * PER_LANE && base < count;
        const auto of = full ? held.sums<true>(x, other) : held.sums<false>(x, other);
        const unsigned own = lane / (32 / EACH);
        if (lane % (32 / EACH) == 0 && own < held.live) sums[(run + own) * chunks + k] = of;
        if (HOLDS) break;
    }
#endif
    __syncthreads();
#ifndef BACKWARD
    if (warp > 0) return;
    float of[1];
    column.sum(shape, by, of, [](const Leaf& l, float (&v)[1]) { v[0] = l.a; });
    const float mean = __fmul_rn(of[0], by.group);
    column.sum(shape, by, of, [&](const Leaf& l, float (&v)[1]) { v[0] = about_mean(l.q, l.len, l.m, mean); });
    const float var = __fmul_rn(of[0], by.group);
    if (lane == 0) {
        first[channel] = mean;
        second[channel] = raw ? var : inverse_std(var, by.eps);
    }
}
#else
    __shared__ float4 moments;
    float of[2], mean = 0.0f, r = 0.0f;
    if (warp == 0) {
        column.sum(shape, by, of, [&](const Leaf& l, float (&v)[2]) { v[0] = l.a, v[1] = gained(l.b, gamma, channel); });
        const float sum = of[1];
        mean = __fmul_rn(of[0], by.group);
        column.sum(shape, by, of, [&](const Leaf& l, float (&v)[2]) {
            v[0] = about_mean(l.q, l.len, l.m, mean);
            v[1] = gained(moment_about_mean(l.p, l.m, mean, l.b), gamma, channel);
        });
        r = inverse_std(__fmul_rn(of[0], by.group), by.eps);
        if (lane == 0) (HOLDS ? moments : stats[channel]) = make_float4(mean, r, __fmul_rn(sum, by.group), __fmul_rn(__fmul_rn(of[1], r), by.group));
    }
#if HOLDS
    __syncthreads();
    const float4 all = moments;
    float largest[EACH] = {};
    held.each<false>([&](unsigned t, unsigned q, bool in) {
        const float v = gradient_of(held.v[t][q], held.g[t][q], gamma, channel, all);
        if (in) dx[held.at + t * held.apart + lane + 32 * q] = v;
#if RUN_WARPS
        if (in) largest[t] = larger(largest[t], v);
#endif
    });
#if RUN_WARPS
    #pragma unroll
    for (unsigned t = 0; t < EACH; ++t) {
        const unsigned magnitude = largest_of_warp(largest[t]);
        if (lane == 0 && t < held.live) magnitudes[(u64)(warp * EACH + t) * shape.c + channel] = magnitude;
    }
#endif
#endif
    if (warp == 0 && dgamma) {
        column.sum(shape, by, of, [&](const Leaf& l, float (&v)[2]) { v[0] = __fmul_rn(moment_about_mean(l.p, l.m, mean, l.b), r), v[1] = l.b; });
        if (lane == 0) {
            dgamma[channel] = of[0];
            if (dbeta) dbeta[channel] = of[1];
        }
    }
}
#endif
