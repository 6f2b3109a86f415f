// The twiddle factors between the two steps of a transform, and the reordering before and after. In all kernels a
// thread takes one complex element per turn of a grid-stride loop. Slots are (k1, k2) or (k1, t2) of one line, k1 <
// half. 8 bytes read and 8 written per element.

typedef unsigned long long u64;

#define EACH(i, total) \
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < total; i += (u64)gridDim.x * blockDim.x)

// Twiddle factors: cosine and sine of k1 t2 / n turns, in pairs. k1 t2 is below n.
extern "C" __global__ void fft_turns(float* __restrict__ out, u64 total, u64 n2, u64 n) {
    EACH(i, total) {
        const float j = (float)(i / n2 * (i % n2));
        out[2 * i] = ditto_cos_turn(j, (float)n);
        out[2 * i + 1] = ditto_sin_turn(j, (float)n);
    }
}

// (part, k1, t2) times the twiddle factors' e^{-i…}, to (k1, t2, part).
extern "C" __global__ void fft_turn(const float* __restrict__ in, float* __restrict__ out,
                                    const float* __restrict__ turns, u64 total, u64 n, u64 n1, u64 n2, u64 half,
                                    float once, float twice) {
    const u64 slots = half * n2;
    EACH(i, total) {
        const u64 line = i / slots, slot = i % slots;
        const float re = in[2 * line * slots + slot], im = in[(2 * line + 1) * slots + slot];
        const float2 t = reinterpret_cast<const float2*>(turns)[slot];
        float2 y;
        y.x = __fmaf_rn(re, t.x, __fmul_rn(im, t.y));
        y.y = __fmaf_rn(im, t.x, -__fmul_rn(re, t.y));
        reinterpret_cast<float2*>(out)[i] = y;
    }
}

// The adjoint of fft_turn.
extern "C" __global__ void fft_turn_back(const float* __restrict__ in, float* __restrict__ out,
                                         const float* __restrict__ turns, u64 total, u64 n, u64 n1, u64 n2, u64 half,
                                         float once, float twice) {
    const u64 slots = half * n2;
    EACH(i, total) {
        const u64 line = i / slots, slot = i % slots;
        const float2 z = reinterpret_cast<const float2*>(in)[i], t = reinterpret_cast<const float2*>(turns)[slot];
        out[2 * line * slots + slot] = __fmaf_rn(z.x, t.x, -__fmul_rn(z.y, t.y));
        out[(2 * line + 1) * slots + slot] = __fmaf_rn(z.y, t.x, __fmul_rn(z.x, t.y));
    }
}

// Gathers the modes 0 .. n / 2 from the slots and multiplies them by their weights.
extern "C" __global__ void fft_gather(const float* __restrict__ in, float* __restrict__ out,
                                      const float* __restrict__ turns, u64 total, u64 n, u64 n1, u64 n2, u64 half,
                                      float once, float twice) {
    const u64 modes = n / 2 + 1;
    EACH(i, total) {
        const u64 line = i / modes, k = i % modes;
        u64 k1 = k % n1, k2 = k / n1;
        const bool mirror = k1 >= half, edge = k == 0 || 2 * k == n;
        if (mirror) {
            k1 = n1 - k1;
            k2 = n2 - 1 - k2;
        }
        const float2 z = reinterpret_cast<const float2*>(in)[line * half * n2 + k1 * n2 + k2];
        const float weight = edge ? once : twice;
        float2 y;
        y.x = __fmul_rn(weight, z.x);
        y.y = edge ? 0.0f : __fmul_rn(weight, mirror ? -z.y : z.y);
        reinterpret_cast<float2*>(out)[i] = y;
    }
}

// The adjoint of fft_gather.
extern "C" __global__ void fft_scatter(const float* __restrict__ in, float* __restrict__ out,
                                       const float* __restrict__ turns, u64 total, u64 n, u64 n1, u64 n2, u64 half,
                                       float once, float twice) {
    const u64 modes = n / 2 + 1, slots = half * n2;
    EACH(i, total) {
        const u64 line = i / slots, slot = i % slots, k1 = slot / n2, f = k1 + n1 * (slot % n2);
        const bool mirror = 2 * f > n;
        float2 y = make_float2(0.0f, 0.0f);
        if (!mirror || (k1 != 0 && 2 * k1 < n1)) {
            const u64 k = mirror ? n - f : f;
            const bool edge = k == 0 || 2 * k == n;
            const float2 z = reinterpret_cast<const float2*>(in)[line * modes + k];
            const float weight = edge ? once : twice;
            y.x = __fmul_rn(weight, z.x);
            y.y = edge ? 0.0f : __fmul_rn(weight, mirror ? -z.y : z.y);
        }
        reinterpret_cast<float2*>(out)[i] = y;
    }
}
