// Helpers of losses over integer labels. `state` tells ignored labels and labels at or above the number of classes from
// good ones.

enum { HIT = 0, IGNORED = 1, BAD = 2 };

__device__ __forceinline__ int state(unsigned label, unsigned long long classes, unsigned ignore, int ignores) {
    return ignores && label == ignore ? IGNORED : (label < classes ? HIT : BAD);
}

// Counts the rows that are not ignored. scalars[0] = 1 / count, rounded once (0 for none); scalars[1] = dy *
// scalars[0]. `safe` gets labels that are safe to index with. One block; the count is an integer, so its order does not
// matter.
extern "C" __global__ void labels_prepare(
    const unsigned* __restrict__ labels, const float* __restrict__ dy, unsigned* __restrict__ safe, float* __restrict__ scalars,
    unsigned long long rows, unsigned long long classes, unsigned ignore, int ignores) {
    __shared__ unsigned long long parts[32];
    unsigned long long count = 0;
    #pragma unroll 4
    for (unsigned long long row = threadIdx.x; row < rows; row += blockDim.x) {
        const unsigned label = labels[row];
        const int s = state(label, classes, ignore, ignores);
        safe[row] = s == HIT ? label : 0u;
        count += s != IGNORED;
    }
    #pragma unroll
    for (int o = 16; o > 0; o /= 2) count += __shfl_down_sync(0xffffffffu, count, o);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = count;
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned long long total = 0;
        for (unsigned w = 0; w < blockDim.x / 32; ++w) total += parts[w];
        const float inverse = total == 0 ? 0.0f : __double2float_rn(__ddiv_rn(1.0, __ull2double_rn(total)));
        scalars[0] = inverse;
        scalars[1] = dy ? __fmul_rn(dy[0], inverse) : 0.0f;
    }
}

// out[row] = x[row, label], or its negative. One thread per row.
extern "C" __global__ void labels_pick(
    const float* __restrict__ x, const unsigned* __restrict__ safe, float* __restrict__ out,
    unsigned long long rows, unsigned long long classes, int negative) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long row = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; row < rows; row += step) {
        const float v = x[row * classes + safe[row]];
        out[row] = negative ? -v : v;
    }
}

// Rows of ignored labels become 0, rows of out-of-range labels NaN. One warp per row.
extern "C" __global__ void labels_settle(
    const unsigned* __restrict__ labels, float* __restrict__ out, unsigned long long rows, unsigned long long width,
    unsigned long long classes, unsigned ignore, int ignores) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned long long warps = (unsigned long long)gridDim.x * (blockDim.x / 32);
    for (unsigned long long row = blockIdx.x * (unsigned long long)(blockDim.x / 32) + threadIdx.x / 32; row < rows; row += warps) {
        const int s = state(labels[row], classes, ignore, ignores);
        if (s == HIT) continue;
        const float value = s == IGNORED ? 0.0f : __int_as_float(0x7fc00000);
        for (unsigned long long j = lane; j < width; j += 32) out[row * width + j] = value;
    }
}

// out[row, label] = -scalars[1]; out is already zero. One thread per row.
extern "C" __global__ void labels_place(
    const unsigned* __restrict__ safe, const float* __restrict__ scalars, float* __restrict__ out,
    unsigned long long rows, unsigned long long classes) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long row = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; row < rows; row += step)
        out[row * classes + safe[row]] = -scalars[1];
}

// out[row] = scalars[0]. One thread per row.
extern "C" __global__ void labels_weights(const float* __restrict__ scalars, float* __restrict__ out, unsigned long long rows) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long row = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; row < rows; row += step) out[row] = scalars[0];
}
