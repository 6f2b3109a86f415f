// The column rule (C3) for kernels whose block has 32 columns side by side. The module's head defines ROWS, the rows of
// a chain.

typedef unsigned long long u64;

// The column rule for 32 columns side by side, a lane each: K sums at a time. start(l) is the l-th elements of a column, from which next()
// goes on; f(read(), v) has them, and TOGETHER are read before the first is added. Warp y chains ROWS elements from ROWS y on, then every warp chains the
// warps' results, so that all warps know the sums.
template <int K, int TOGETHER = 8, class Start, class F>
__device__ __forceinline__ void column_sums(u64 count, float (*part)[K][33], float (&total)[K], Start start, F f) {
    const unsigned x = threadIdx.x % 32, y = threadIdx.x / 32, warps = blockDim.x / 32;
    float level[4][K] = {};
    unsigned in[4] = {0, 0, 0, 0};
    for (u64 first = 0; first < count; first += ROWS * ROWS) {
        const unsigned n = count - first < ROWS * ROWS ? (unsigned)(count - first) : ROWS * ROWS;
        for (unsigned c = y; c * ROWS < n; c += warps) {
            const unsigned len = n - c * ROWS < ROWS ? n - c * ROWS : ROWS;
            float s[K] = {};
            auto at = start(first + c * ROWS);
            for (unsigned r = 0; r < len; r += TOGETHER) {
                decltype(at.read()) read[TOGETHER];
                #pragma unroll
                for (int i = 0; i < TOGETHER; ++i) {
                    read[i] = at.read();
                    if (r + i + 1 < len) at.next();
                }
                #pragma unroll
                for (int i = 0; i < TOGETHER; ++i) {
                    float v[K];
                    f(read[i], v);
                    #pragma unroll
                    for (int k = 0; k < K; ++k) s[k] = r + i < len ? __fadd_rn(s[k], v[k]) : s[k];
                }
            }
            #pragma unroll
            for (int k = 0; k < K; ++k) part[c][k][x] = s[k];
        }
        __syncthreads();
        float s[K] = {};
        for (unsigned c = 0; c * ROWS < n; ++c) {
            #pragma unroll
            for (int k = 0; k < K; ++k) s[k] = __fadd_rn(s[k], part[c][k][x]);
        }
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < K; ++k) level[0][k] = __fadd_rn(level[0][k], s[k]);
        ++in[0];
        #pragma unroll
        for (unsigned l = 0; l < 3; ++l) if (in[l] == ROWS) {
            #pragma unroll
            for (int k = 0; k < K; ++k) {
                level[l + 1][k] = __fadd_rn(level[l + 1][k], level[l][k]);
                level[l][k] = 0.0f;
            }
            ++in[l + 1];
            in[l] = 0;
        }
    }
    #pragma unroll
    for (unsigned l = 0; l < 3; ++l) {
        bool higher = false;
        #pragma unroll
        for (unsigned k = l + 1; k < 4; ++k) higher = higher || in[k] > 0;
        if (in[l] > 0 && higher) {
            #pragma unroll
            for (int k = 0; k < K; ++k) level[l + 1][k] = __fadd_rn(level[l + 1][k], level[l][k]);
            ++in[l + 1];
            in[l] = 0;
        }
    }
    #pragma unroll
    for (int k = 0; k < K; ++k) {
        total[k] = level[0][k];
        #pragma unroll
        for (unsigned l = 1; l < 4; ++l) if (in[l] > 0) total[k] = level[l][k];
    }
}

// One sum, of f(l).
template <class F> struct Element {
    const F& f;
    u64 l;
    __device__ __forceinline__ float read() const { return f(l); }
    __device__ __forceinline__ void next() { ++l; }
};
template <class F>
__device__ __forceinline__ float column_sum(u64 count, float (*part)[33], F f) {
    float total[1];
    column_sums<1>(count, reinterpret_cast<float (*)[1][33]>(part), total, [&](u64 l) { return Element<F>{f, l}; },
                   [](float of, float (&v)[1]) { v[0] = of; });
    return total[0];
}
