// delta[row] = sum of dy * o along the row, by the row rule, less dl * log2 e. A warp per row; 8 bytes read per
// element. Rows are taken as they lie; where heads lie inside them, results go to the lists, and dl may be missing.
extern "C" __global__ void __launch_bounds__(256)
attention_delta(const float* __restrict__ dy, const float* __restrict__ o, const float* __restrict__ dl, float* __restrict__ delta, u64 rows,
                unsigned n, unsigned heads) {
    const unsigned lane = threadIdx.x & 31;
    for (u64 row = blockIdx.x * 8ull + (threadIdx.x >> 5); row < rows; row += gridDim.x * 8ull) {
        float s = 0.0f;
#pragma unroll
        for (unsigned c = 0; c < DITTO_DV; c += 32)
            if (c + lane < DITTO_DV) s = __fadd_rn(s, __fmul_rn(dy[row * DITTO_DV + c + lane], o[row * DITTO_DV + c + lane]));
#pragma unroll
        for (int half = 16; half > 0; half /= 2) s = __fadd_rn(s, __shfl_down_sync(0xffffffffu, s, half));
        if (lane == 0) {
            u64 at = row;
            if (DITTO_INSIDE) {
                const unsigned place = (unsigned)row / heads, head = (unsigned)row % heads;
                at = (u64)(place / n * heads + head) * n + place % n;
            }
            delta[at] = DITTO_INSIDE && !dl ? s : __fmaf_rn(dl[at], -LOG2E, s);
        }
    }
}
