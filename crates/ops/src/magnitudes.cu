// The largest magnitudes of numbers. As integers their bits are in order, with NaN above infinity.

// The larger magnitude; NaN if one is.
__device__ __forceinline__ float larger(float m, float x) {
    asm("{.reg .f32 a; abs.f32 a, %1; max.NaN.f32 %0, %0, a;}" : "+f"(m) : "f"(x));
    return m;
}

__device__ __forceinline__ unsigned largest_of_warp(float m) { return __reduce_max_sync(~0u, __float_as_uint(m)); }

// The largest of what the eight warps of a block have, for all its threads, which call it once.
__device__ __forceinline__ unsigned largest_of_block(unsigned of_warp) {
    __shared__ unsigned of_warps[8];
    of_warps[threadIdx.x / 32] = of_warp;
    __syncthreads();
    return __reduce_max_sync(~0u, of_warps[threadIdx.x % 8]);
}

// Writes the largest magnitude of a line that a warp has, or all eight warps of a block; `is_line`: there is one. All threads of the block call it.
template <int WARPS> __device__ __forceinline__ void leave_magnitude(float m, unsigned* to, bool is_line) {
    static_assert(WARPS == 1 || WARPS == 8);
    unsigned largest = largest_of_warp(m);
    if (WARPS > 1) largest = largest_of_block(largest);
    if (threadIdx.x % (32 * WARPS) == 0 && is_line) *to = largest;
}
