// Folds by the fixed trees of the numerics contract (C3).
//
// The module's head defines PARAMS, the kernel's first parameters; START and combine, how elements are put
// together; ELEMENT(i, o), the element at position i, which belongs to result o; POST(s, o), result o from what
// was folded; the constants of the trees: CHUNK elements of the row rule, ROWS rows of the column rule; and UNROLL, how
// many elements a thread has under way.
// This text stands twice in a module: for the elements, and for the partial results of lower levels.

// Row rule. Thread mapping: `group` threads fold one chunk of CHUNK neighbouring elements of one row; lane l
// takes elements l, l + 32, ... in order, then the lanes fold by halving. A group is a warp, or fewer threads
// where rows are that short: the lanes left out would hold the start, which changes nothing. 4 bytes read per
// element and input.
extern "C" __global__ void fold_rows(
    PARAMS, const float* __restrict__ partial, float* __restrict__ out,
    unsigned long long rows, unsigned long long columns, unsigned long long chunks, unsigned group, int last) {
    const unsigned lane = threadIdx.x % group, per_warp = 32 / group;
    const unsigned long long items = rows * chunks;
    const unsigned long long step = (unsigned long long)gridDim.x * (blockDim.x / 32) * per_warp;
    unsigned long long first = (blockIdx.x * (unsigned long long)(blockDim.x / 32) + threadIdx.x / 32) * per_warp;
    // The whole warp goes on as long as one of its groups has work: all lanes take part in the shuffles.
    for (; first < items; first += step) {
        const unsigned long long w = first + threadIdx.x % 32 / group;
        const unsigned long long row = chunks == 1 ? w : w / chunks;
        float s = START;
        if (w < items) {
            const unsigned long long start = (w - row * chunks) * CHUNK, left = columns - start;
            const unsigned len = left < CHUNK ? (unsigned)left : CHUNK;
            const unsigned long long at = row * columns + start;
            if (len == CHUNK) {
                #pragma unroll UNROLL
                for (unsigned q = 0; q < CHUNK / 32; ++q) s = combine(s, ELEMENT(at + lane + 32 * q, row));
            } else {
                #pragma unroll 4
                for (unsigned j = lane; j < len; j += 32) s = combine(s, ELEMENT(at + j, row));
            }
        }
        for (unsigned o = group / 2; o > 0; o /= 2) s = combine(s, __shfl_down_sync(0xffffffffu, s, o, group));
        if (lane == 0 && w < items) out[w] = last ? POST(s, row) : s;
    }
}

// Column rule, rows of one chain only. Thread mapping: one thread per result; neighbouring threads read
// neighbouring words.
extern "C" __global__ void fold_short(
    PARAMS, const float* __restrict__ partial, float* __restrict__ out,
    unsigned long long outer, unsigned rows, unsigned long long inner, int last) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < outer * inner; i += step) {
        const unsigned long long at = i / inner * rows * inner + i % inner;
        float s = START;
        #pragma unroll 8
        for (unsigned r = 0; r < rows; ++r) s = combine(s, ELEMENT(at + r * inner, i));
        out[i] = last ? POST(s, i) : s;
    }
}

// Column rule. Thread mapping: a block takes `width` neighbouring columns (at most 32) and up to ROWS * ROWS
// rows; thread row y chains ROWS rows from ROWS y on, then the first thread row chains the results: two levels of
// the tree at once. Neighbouring threads read neighbouring words.
extern "C" __global__ void fold_columns(
    PARAMS, const float* __restrict__ partial, float* __restrict__ out,
    unsigned long long outer, unsigned long long rows, unsigned long long inner,
    unsigned long long supers, unsigned long long tiles, unsigned width, int last) {
    __shared__ float part[ROWS][33];
    const unsigned x = threadIdx.x % width, y = threadIdx.x / width, chains = blockDim.x / width;
    for (unsigned long long item = blockIdx.x; item < outer * supers * tiles; item += gridDim.x) {
        const unsigned long long column = item % tiles * width + x;
        const unsigned long long super = item / tiles % supers, o = item / tiles / supers;
        const unsigned long long first = super * (ROWS * ROWS), left = rows - first;
        const unsigned count = left < ROWS * ROWS ? (unsigned)left : ROWS * ROWS;
        const unsigned long long result = o * inner + column;
        // Threads beyond the last whole thread row have nothing to do.
        if (y < chains && column < inner) {
            for (unsigned chain = y; chain * ROWS < count; chain += chains) {
                const unsigned long long at = (o * rows + first + chain * ROWS) * inner + column;
                const unsigned len = count - chain * ROWS < ROWS ? count - chain * ROWS : ROWS;
                float s = START;
                if (len == ROWS) {
                    #pragma unroll UNROLL
                    for (unsigned r = 0; r < ROWS; ++r) s = combine(s, ELEMENT(at + r * inner, result));
                } else {
                    for (unsigned r = 0; r < len; ++r) s = combine(s, ELEMENT(at + r * inner, result));
                }
                part[chain][x] = s;
            }
        }
        __syncthreads();
        if (y == 0 && column < inner) {
            float s = START;
            for (unsigned c = 0; c * ROWS < count; ++c) s = combine(s, part[c][x]);
            out[(o * supers + super) * inner + column] = last ? POST(s, result) : s;
        }
        __syncthreads();
    }
}
