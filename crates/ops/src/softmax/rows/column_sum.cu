// The column rule (C3) for kernels whose block has 32 columns side by side. The module's head defines ROWS, the rows of
// a chain.

typedef unsigned long long u64;

// The column rule for 32 columns side by side, a lane each; column l-th element is f(l). Warp y chains ROWS
// elements from ROWS y on, then every warp chains the warps' results, so that all warps know the sums.
template <class F>
__device__ __forceinline__ float column_sum(u64 count, float (*part)[33], F f) {
    const unsigned x = threadIdx.x % 32, y = threadIdx.x / 32, warps = blockDim.x / 32;
    float level[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    unsigned in[4] = {0, 0, 0, 0};
    for (u64 first = 0; first < count; first += ROWS * ROWS) {
        const unsigned n = count - first < ROWS * ROWS ? (unsigned)(count - first) : ROWS * ROWS;
        for (unsigned c = y; c * ROWS < n; c += warps) {
            const unsigned len = n - c * ROWS < ROWS ? n - c * ROWS : ROWS;
            float s = 0.0f;
            #pragma unroll 8
            for (unsigned r = 0; r < len; ++r) s = __fadd_rn(s, f(first + c * ROWS + r));
            part[c][x] = s;
        }
        __syncthreads();
        float s = 0.0f;
        for (unsigned c = 0; c * ROWS < n; ++c) s = __fadd_rn(s, part[c][x]);
        __syncthreads();
        level[0] = __fadd_rn(level[0], s);
        ++in[0];
        #pragma unroll
        for (unsigned l = 0; l < 3; ++l) if (in[l] == ROWS) {
            level[l + 1] = __fadd_rn(level[l + 1], level[l]);
            ++in[l + 1];
            level[l] = 0.0f;
            in[l] = 0;
        }
    }
    #pragma unroll
    for (unsigned l = 0; l < 3; ++l) {
        bool higher = false;
        #pragma unroll
        for (unsigned k = l + 1; k < 4; ++k) higher = higher || in[k] > 0;
        if (in[l] > 0 && higher) {
            level[l + 1] = __fadd_rn(level[l + 1], level[l]);
            ++in[l + 1];
            in[l] = 0;
        }
    }
    float total = level[0];
    #pragma unroll
    for (unsigned l = 1; l < 4; ++l) if (in[l] > 0) total = level[l];
    return total;
}
