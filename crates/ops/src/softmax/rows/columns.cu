// The formula of rows.cu along an axis that is not the last one, on values of (outer, n, inner). The sum is by the column rule,
// since a column's elements are `inner` apart. `count` is the number of columns, outer * inner.
//
//   SHORT       columns are at most one chain of the column rule (ROWS elements): a thread has a column. Otherwise a block
//               has 32 columns, a lane each, and its warps share the rows.
//   THREADS     threads of a block if SHORT
// column_sum.cu comes before this text. Inputs are read up to three times, the second and third time from the caches.

// Loads the elements at row r of the column that starts at `at`.
#define LOAD(r) \
    float x[INS][1]; \
    _Pragma("unroll") for (int i = 0; i < INS; ++i) x[i][0] = in[i][at + (r) * inner];

extern "C" __global__ void columns(float* __restrict__ out, INPUT_PARAMETERS, u64 count, u64 n, u64 inner CONSTANT_PARAMETERS) {
    const float* const in[INS] = {INPUTS};
    auto start_of = [&](u64 c) {
        const u64 o = c <= 0xffffffffull && inner <= 0xffffffffull ? (unsigned)c / (unsigned)inner : c / inner;
        return o * n * inner + (c - o * inner);
    };
#if SHORT
    for (u64 c = blockIdx.x * (u64)THREADS + threadIdx.x; c < count; c += gridDim.x * (u64)THREADS) {
        const u64 at = start_of(c);
        float m = 0.0f;
        if (MAX) {
            m = NEG_INF;
            #pragma unroll 4
            for (unsigned r = 0; r < n; ++r) m = fmaxf(m, in0[at + r * inner]);
            m = __fadd_rn(m, 0.0f);
        }
        float s = 0.0f;
        #pragma unroll 4
        for (unsigned r = 0; r < n; ++r) {
            LOAD(r)
            s = __fadd_rn(s, TERM(x, 0, m));
        }
        const float of = of_row(s);
        #pragma unroll 4
        for (unsigned r = 0; r < n; ++r) {
            LOAD(r)
            out[at + r * inner] = POST(x, 0, m, s, TERM(x, 0, m), 0.0f, 0.0f, of);
        }
    }
#else
    __shared__ float part[32][33];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (u64 tile = blockIdx.x; tile * 32 < count; tile += gridDim.x) {
        // Lanes beyond the last column compute it too and do not store it.
        const u64 wanted = tile * 32 + lane, at = start_of(wanted < count ? wanted : count - 1);
        float m = 0.0f;
        if (MAX) {
            m = NEG_INF;
            #pragma unroll 8
            for (u64 r = warp; r < n; r += warps) m = fmaxf(m, in0[at + r * inner]);
            part[warp][lane] = m;
            __syncthreads();
            for (unsigned w = 0; w < warps; ++w) m = fmaxf(m, part[w][lane]);
            m = __fadd_rn(m, 0.0f);
            __syncthreads();
        }
        const float s = column_sum(n, part, [&](u64 r) {
            LOAD(r)
            return TERM(x, 0, m);
        });
        const float of = of_row(s);
        if (wanted < count) {
            #pragma unroll 4
            for (u64 r = warp; r < n; r += warps) {
                LOAD(r)
                out[at + r * inner] = POST(x, 0, m, s, TERM(x, 0, m), 0.0f, 0.0f, of);
            }
        }
    }
#endif
}
