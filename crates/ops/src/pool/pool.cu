// What all pooling kernels use; their loops are generated.

typedef unsigned long long u64;
struct Sizes { unsigned in[10], out[10]; };  // the host's MAX_RANK

// A NaN is larger than every number, and the first of equals stays.
__device__ __forceinline__ bool larger(float v, float best) { return v > best || (v != v && best == best); }

// All NaNs are one.
__device__ __forceinline__ bool same(float a, float b) { return a == b || (a != a && b != b); }

// The last coordinate along an axis of this size, taken off a position. 32-bit division where it suffices: it is
// several times faster.
__device__ __forceinline__ unsigned take(u64& rest, unsigned size) {
    u64 left;
    if (rest <= 0xffffffffull) left = (unsigned)rest / size;
    else left = rest / size;
    const unsigned c = (unsigned)(rest - left * size);
    rest = left;
    return c;
}

// The first window that may hold cell c along an axis.
__device__ __forceinline__ int low_window(int c, int kernel, int stride, int padding) {
    const int past = c + padding - kernel + 1;
    return past <= 0 ? 0 : (past + stride - 1) / stride;
}

// Cells of a window from `start` on that are inside the input.
__device__ __forceinline__ unsigned real_cells(int start, int kernel, int size) {
    return (unsigned)(min(start + kernel, size) - max(start, 0));
}

