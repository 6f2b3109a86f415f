// Sums by the two fixed trees of the numerics contract (C3).
//
// The module's head defines LOAD(i), the element at position i, and the constants of the trees: CHUNK elements
// of the row rule, ROWS rows of the column rule. Lanes are the lanes of a warp.

// Row rule. Thread mapping: one warp sums one chunk of CHUNK neighbouring elements of one row; lane l adds
// elements l, l + 32, ... in order, then the lanes fold by halving. 4 bytes read per element.
extern "C" __global__ void sum_rows(
    const float* __restrict__ in0, const float* __restrict__ in1, float* __restrict__ out,
    unsigned long long rows, unsigned long long columns, unsigned long long chunks, float factor, int scaled) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned long long warps = (unsigned long long)gridDim.x * (blockDim.x / 32);
    for (unsigned long long w = blockIdx.x * (unsigned long long)(blockDim.x / 32) + threadIdx.x / 32; w < rows * chunks; w += warps) {
        const unsigned long long row = w / chunks, start = w % chunks * CHUNK;
        const unsigned long long left = columns - start;
        const unsigned len = left < CHUNK ? (unsigned)left : CHUNK;
        const unsigned long long at = row * columns + start;
        float s = 0.0f;
        if (len == CHUNK) {
            #pragma unroll
            for (unsigned q = 0; q < CHUNK / 32; ++q) s = __fadd_rn(s, LOAD(at + lane + 32 * q));
        } else {
            #pragma unroll 4
            for (unsigned j = lane; j < len; j += 32) s = __fadd_rn(s, LOAD(at + j));
        }
        #pragma unroll
        for (int o = 16; o > 0; o /= 2) s = __fadd_rn(s, __shfl_down_sync(0xffffffffu, s, o));
        if (lane == 0) out[w] = scaled ? __fmul_rn(s, factor) : s;
    }
}

// Column rule. Thread mapping: a block takes 32 neighbouring columns and up to ROWS * ROWS rows; warp y
// chains ROWS rows from ROWS y on, then warp 0 chains the warps' results: two levels of the tree at once.
// Reads of a warp are 32 neighbouring words.
extern "C" __global__ void sum_columns(
    const float* __restrict__ in0, const float* __restrict__ in1, float* __restrict__ out,
    unsigned long long outer, unsigned long long rows, unsigned long long inner,
    unsigned long long supers, unsigned long long tiles, float factor, int scaled) {
    __shared__ float part[ROWS][33];
    const unsigned x = threadIdx.x % 32, y = threadIdx.x / 32, warps = blockDim.x / 32;
    for (unsigned long long item = blockIdx.x; item < outer * supers * tiles; item += gridDim.x) {
        const unsigned long long column = item % tiles * 32 + x;
        const unsigned long long super = item / tiles % supers, o = item / tiles / supers;
        const unsigned long long first = super * (ROWS * ROWS);
        const unsigned long long left = rows - first;
        const unsigned count = left < ROWS * ROWS ? (unsigned)left : ROWS * ROWS;
        for (unsigned chain = y; chain * ROWS < count; chain += warps) {
            float s = 0.0f;
            if (column < inner) {
                const unsigned long long at = (o * rows + first + chain * ROWS) * inner + column;
                const unsigned len = count - chain * ROWS < ROWS ? count - chain * ROWS : ROWS;
                if (len == ROWS) {
                    #pragma unroll
                    for (unsigned r = 0; r < ROWS; ++r) s = __fadd_rn(s, LOAD(at + r * inner));
                } else {
                    for (unsigned r = 0; r < len; ++r) s = __fadd_rn(s, LOAD(at + r * inner));
                }
            }
            part[chain][x] = s;
        }
        __syncthreads();
        if (y == 0 && column < inner) {
            float s = 0.0f;
            for (unsigned c = 0; c * ROWS < count; ++c) s = __fadd_rn(s, part[c][x]);
            out[(o * supers + super) * inner + column] = scaled ? __fmul_rn(s, factor) : s;
        }
        __syncthreads();
    }
}

// The result of a sum over no elements.
extern "C" __global__ void fill_value(float* out, unsigned long long n, float value) {
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < n; i += (unsigned long long)gridDim.x * blockDim.x) out[i] = value;
}
