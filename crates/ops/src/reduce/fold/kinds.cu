// Kinds of folds: what a fold starts from, what it does with one more element, and how it ends.

struct Sum {
    static __device__ __forceinline__ float start() { return 0.0f; }
    static __device__ __forceinline__ float combine(float a, float b) { return __fadd_rn(a, b); }
    static __device__ __forceinline__ float finish(float s) { return s; }
};

struct Product {
    static __device__ __forceinline__ float start() { return 1.0f; }
    static __device__ __forceinline__ float combine(float a, float b) { return __fmul_rn(a, b); }
    static __device__ __forceinline__ float finish(float s) { return s; }
};

// NaN if one element is. +0 is added at the end: the result is the same whichever zero was met first.
struct Max {
    static __device__ __forceinline__ float start() { return -__int_as_float(0x7f800000); }
    static __device__ __forceinline__ float combine(float a, float b) { return (b > a || b != b) ? b : a; }
    static __device__ __forceinline__ float finish(float s) { return __fadd_rn(s, 0.0f); }
};

struct Min {
    static __device__ __forceinline__ float start() { return __int_as_float(0x7f800000); }
    static __device__ __forceinline__ float combine(float a, float b) { return (a > b || b != b) ? b : a; }
    static __device__ __forceinline__ float finish(float s) { return __fadd_rn(s, 0.0f); }
};
