// Random draws. One thread per element in a grid-stride loop; 4 bytes written per element.
//
// Element i of a call has the bits `ditto_mix(key + i)`. The stream's key is made of the seed and the position of the
// call: `counter`, plus `base` in a compiled program (two words, low first; null in eager mode). The functions
// `ditto_…` come before this text.
//
// This text is compiled after `#define` lines that pick one of two kernels:
//   DRAWS      uniforms per element, at DRAWS * i, DRAWS * i + 1, …; defined for the kernel `draw`, which needs
//   PARAMS     the parameters of the formula, each after a comma: pointers to scalar inputs, then constants
//   VALUE      the element: a generated device function of UNIFORM(0), … and the parameters
// Without DRAWS the kernel is `whole`.

typedef unsigned long long u64;

__device__ __forceinline__ u64 key_of(u64 seed, u64 counter, const unsigned* base) {
    if (base) counter += base[0] | (u64)base[1] << 32;
    return ditto_key(seed, counter);
}

#ifdef DRAWS

// Uniform d of element i.
#define UNIFORM(d) ditto_uniform(key, (u64)DRAWS * i + d)

// Floats: a formula of uniforms in [0, 1).
extern "C" __global__ void draw(float* __restrict__ out, u64 n, u64 seed, u64 counter, const unsigned* base PARAMS) {
    const u64 key = key_of(seed, counter, base);
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
        out[i] = VALUE;
    }
}

#else

// Integers from `low` on, `count` of them, at most 2^32: `low` plus the top 32 bits times `count`, over 2^32.
extern "C" __global__ void whole(unsigned* __restrict__ out, u64 n, u64 seed, u64 counter, const unsigned* base, unsigned low, u64 count) {
    const u64 key = key_of(seed, counter, base);
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
        out[i] = low + (unsigned)((ditto_mix(key + i) >> 32) * count >> 32);
    }
}

#endif
