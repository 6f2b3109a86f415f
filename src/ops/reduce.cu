// Sums by the two fixed trees of the numerics contract (C3).
//
// The element at position i is LOAD(i), defined by the module's head.

// Row rule. Thread mapping: one warp sums one chunk of 1024 neighbouring elements of one row; lane l adds
// elements l, l + 32, ... in order, then the lanes fold by halving. 4 bytes read per element.
extern "C" __global__ void sum_rows(
    const float* __restrict__ in0, const float* __restrict__ in1, float* __restrict__ out,
    unsigned long long rows, unsigned long long columns, unsigned long long chunks, float factor, int scaled) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned long long warps = (unsigned long long)gridDim.x * (blockDim.x / 32);
    for (unsigned long long w = blockIdx.x * (unsigned long long)(blockDim.x / 32) + threadIdx.x / 32; w < rows * chunks; w += warps) {
        const unsigned long long row = w / chunks, start = w % chunks * 1024;
        const unsigned long long left = columns - start;
        const unsigned len = left < 1024 ? (unsigned)left : 1024;
        const unsigned long long at = row * columns + start;
        float s = 0.0f;
        if (len == 1024) {
            #pragma unroll
            for (unsigned q = 0; q < 32; ++q) s = __fadd_rn(s, LOAD(at + lane + 32 * q));
        } else {
            #pragma unroll 4
            for (unsigned j = lane; j < len; j += 32) s = __fadd_rn(s, LOAD(at + j));
        }
        #pragma unroll
        for (int o = 16; o > 0; o /= 2) s = __fadd_rn(s, __shfl_down_sync(0xffffffffu, s, o));
        if (lane == 0) out[w] = scaled ? __fmul_rn(s, factor) : s;
    }
}

// Column rule. Thread mapping: a block takes 32 neighbouring columns and up to 1024 rows; warp y chains
// rows 32 y .. 32 y + 31, then warp 0 chains the warps' results: two levels of the tree at once.
// Reads of a warp are 32 neighbouring words.
extern "C" __global__ void sum_columns(
    const float* __restrict__ in0, const float* __restrict__ in1, float* __restrict__ out,
    unsigned long long outer, unsigned long long rows, unsigned long long inner,
    unsigned long long supers, unsigned long long tiles, float factor, int scaled) {
    __shared__ float part[32][33];
    const unsigned x = threadIdx.x % 32, y = threadIdx.x / 32, warps = blockDim.x / 32;
    for (unsigned long long item = blockIdx.x; item < outer * supers * tiles; item += gridDim.x) {
        const unsigned long long column = item % tiles * 32 + x;
        const unsigned long long super = item / tiles % supers, o = item / tiles / supers;
        const unsigned long long first = super * 1024;
        const unsigned long long left = rows - first;
        const unsigned count = left < 1024 ? (unsigned)left : 1024;
        for (unsigned chain = y; chain * 32 < count; chain += warps) {
            float s = 0.0f;
            if (column < inner) {
                const unsigned long long at = (o * rows + first + chain * 32) * inner + column;
                const unsigned len = count - chain * 32 < 32 ? count - chain * 32 : 32;
                if (len == 32) {
                    #pragma unroll
                    for (unsigned r = 0; r < 32; ++r) s = __fadd_rn(s, LOAD(at + r * inner));
                } else {
                    for (unsigned r = 0; r < len; ++r) s = __fadd_rn(s, LOAD(at + r * inner));
                }
            }
            part[chain][x] = s;
        }
        __syncthreads();
        if (y == 0 && column < inner) {
            float s = 0.0f;
            for (unsigned c = 0; c * 32 < count; ++c) s = __fadd_rn(s, part[c][x]);
            out[(o * supers + super) * inner + column] = scaled ? __fmul_rn(s, factor) : s;
        }
        __syncthreads();
    }
}

// The result of a sum over no elements.
extern "C" __global__ void fill_value(float* out, unsigned long long n, float value) {
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < n; i += (unsigned long long)gridDim.x * blockDim.x) out[i] = value;
}
