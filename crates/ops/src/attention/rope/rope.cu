// Rotary position embedding, one thread per pair and row in a grid-stride loop: 8 bytes read and written of x; the table
// comes from the cache. A row of the table has `half` cosines, then `half` sines. Pair i of a row is (x[2i], x[2i + 1]) if
// `interleaved`, else (x[i], x[half + i]). `sign` -1 turns backwards.

extern "C" __global__ void __launch_bounds__(256)
rope(const float* __restrict__ x, const float* __restrict__ table, float* __restrict__ out, unsigned long long pairs,
     unsigned long long n, unsigned half, unsigned interleaved, float sign) {
    for (unsigned long long p = blockIdx.x * 256ull + threadIdx.x; p < pairs; p += gridDim.x * 256ull) {
        unsigned long long row, t;
        unsigned i;
        if (pairs >> 32) {
            row = p / half;
            i = (unsigned)(p - row * half);
            t = row % n;
        } else {
            row = (unsigned)p / half;
            i = (unsigned)p - (unsigned)row * half;
            t = (unsigned)row % (unsigned)n;
        }
        const float c = table[t * 2 * half + i], s = __fmul_rn(table[t * 2 * half + half + i], sign);
        float a, b;
        if (interleaved) {
            const float2 v = reinterpret_cast<const float2*>(x)[p];
            a = v.x; b = v.y;
        } else {
            a = x[row * 2 * half + i];
            b = x[row * 2 * half + half + i];
        }
        const float ya = __fmaf_rn(a, c, -__fmul_rn(b, s)), yb = __fmaf_rn(b, c, __fmul_rn(a, s));
        if (interleaved) {
            reinterpret_cast<float2*>(out)[p] = make_float2(ya, yb);
        } else {
            out[row * 2 * half + i] = ya;
            out[row * 2 * half + half + i] = yb;
        }
    }
}
