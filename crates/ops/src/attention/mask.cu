// out[..., i, j] = 1 where the mask's magnitude is above 0 (or there is none) and, if causal, j <= i; else 0.
extern "C" __global__ void __launch_bounds__(256)
attention_mask(const float* __restrict__ mask, float* __restrict__ out, u64 total, u64 n, u64 m, u64 matrix, u64 row, u64 column, unsigned causal) {
    for (u64 at = blockIdx.x * 256ull + threadIdx.x; at < total; at += gridDim.x * 256ull) {
        const u64 j = at % m, i = at / m % n, z = at / m / n;
        bool open = !causal || j <= i;
        if (mask) open = open && fabsf(mask[z * matrix + i * row + j * column]) > 0.0f;
        out[at] = open ? 1.0f : 0.0f;
    }
}
