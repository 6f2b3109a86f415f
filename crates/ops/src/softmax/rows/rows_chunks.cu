// Long rows of one input: one block per row, a warp for one chunk of the row rule or for two neighbours. A warp has its elements
// in registers, as in rows_warp.cu, while those of the next row are copied to its shared memory. The first IN_SHARED of each
// lane have no registers: they stay in shared memory until their last use. The input is read once and the result written once,
// 4 bytes per element, with streaming stores.
//
// Beyond the row's end shared memory holds -inf, whose terms are 0, so that all lanes do the same. A row that is not aligned is
// copied from the aligned address before it up to one beyond its end, and lies `shift` elements further in shared memory. Beyond
// the last row there is nothing to read: its last elements are loaded one by one.
//
//   WARPS       warps of a block
//   BLOCKS      blocks that a multiprocessor holds
//   CHUNKS      chunks of a warp, 1 or 2
//   IN_SHARED   elements of a lane that have no registers
//   SHIFT       0 for aligned rows, otherwise 4: elements before a row that may be copied with it
// row_copy.cu comes before this text.

static_assert(MAX, "the barrier of the maximum is also the one between two rows' sums");

#define PER_CHUNK (CHUNK / 32)
#define PER_LANE (CHUNKS * PER_CHUNK)
#define WORDS (CHUNKS * CHUNK)
// Elements between two tests for the row's end: the last warp may have few.
#define GROUP 16

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) rows(ROW_PARAMETERS) {
    const float g_all = SCALAR == 1 ? scalar[0] : 0.0f;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    extern __shared__ float4 row_memory[];
    __shared__ float maxima[WARPS], chunk_sums[WARPS * CHUNKS];
    __shared__ u64 barriers[WARPS];
    const unsigned width = (unsigned)columns, chunks = (width + CHUNK - 1) / CHUNK, first = warp * WORDS;
    float* const memory = reinterpret_cast<float*>(row_memory) + warp * (WORDS + 2 * SHIFT);
    // Elements of the warp in each row, and of them those from this lane's first on.
    const int length = first < width ? (int)(width - first) : 0, left = length - (int)lane;
    for (int j = length + lane; j < WORDS + 2 * SHIFT; j += 32) memory[j] = NEG_INF;
    RowCopy copy(barriers + warp, IN_SHARED > 0 ? 2 : 1);
    auto shift_of = [&](u64 row) { return SHIFT ? (int)(row * columns % 4) : 0; };
    // Starts a copy of the lanes' elements from one up to another. In shared memory its ends are the same for all rows: the
    // elements that stay there take up to SHIFT others with them.
    auto fetch = [&](u64 row, int from, int to) {
        if (row >= rows) return;
        const int start = from ? 32 * from + SHIFT : 0, stop = 32 * to + SHIFT;
        const int shift = shift_of(row), end = (shift + length + (row + 1 < rows ? 3 : 0)) / 4 * 4;
        copy.start(memory + start, in0 + row * columns + first - shift + start, (end < stop ? end : stop) - start);
    };
    u64 row = blockIdx.x;
    if (IN_SHARED) fetch(row, 0, IN_SHARED);
    fetch(row, IN_SHARED, PER_LANE);
    for (; row < rows; row += gridDim.x) {
        float* const mine = memory + shift_of(row) + lane;
        copy.wait();
        if (SHIFT && length < WORDS + SHIFT) {
            const int shift = shift_of(row), end = (shift + length) / 4 * 4 + (int)lane;
            if (row + 1 == rows && end < shift + length) memory[end] = in0[row * columns + first - shift + end];
            if (length < WORDS && lane < SHIFT) mine[length] = NEG_INF;
            copy.written();
            __syncwarp();
        }
        float in_registers[PER_LANE - IN_SHARED], m = NEG_INF;
        #pragma unroll
        for (int q = IN_SHARED; q < PER_LANE; ++q) in_registers[q - IN_SHARED] = mine[32 * q];
        fetch(row + gridDim.x, IN_SHARED, PER_LANE);
        // The lane's q-th element, and another value in its place.
#if IN_SHARED
        auto get = [&](int q) { return q < IN_SHARED ? mine[32 * q] : in_registers[q - IN_SHARED]; };
        auto set = [&](int q, float value) {
            if (q >= IN_SHARED) in_registers[q - IN_SHARED] = value;
            else if (32 * q < left) mine[32 * q] = value;
        };
#else
        auto get = [&](int q) { return in_registers[q]; };
        auto set = [&](int q, float value) { in_registers[q] = value; };
#endif
        #pragma unroll
        for (int q = 0; q < PER_LANE; ++q) m = fmaxf(m, get(q));
        m = warp_max(m);
        if (lane == 0) maxima[warp] = m;
        // Also keeps a row's sums until all warps have read them.
        __syncthreads();
        m = __fadd_rn(warp_max(maxima[lane < WARPS ? lane : 0]), 0.0f);
        #pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            float sum = 0.0f;
            #pragma unroll
            for (int from = chunk * PER_CHUNK; from < (chunk + 1) * PER_CHUNK; from += GROUP) {
                if (32 * from < length) {
                    #pragma unroll
                    for (int q = from; q < from + GROUP; ++q) {
                        const float x[1][1] = {{get(q)}}, t = TERM(x, 0, m);
                        sum = __fadd_rn(sum, t);
                        if (!PER_ROW && TERM_REPLACES_X) set(q, t);
                    }
                }
                if (PER_ROW && IN_SHARED && from < IN_SHARED) fetch(row + gridDim.x, 0, IN_SHARED);
            }
            sum = warp_sum(sum);
            if (lane == 0) chunk_sums[warp * CHUNKS + chunk] = sum;
        }
        if (!PER_ROW && TERM_REPLACES_X && IN_SHARED > 0) copy.written();
        const float s = sum_of_chunks(chunk_sums, chunks), r = of_row(s);
        const unsigned label = label_of(labels, row, columns);
#if PER_ROW
        if (threadIdx.x == 0) {
            const float x[1][1] = {{in0[row * columns + label]}};
            out[row] = POST(x, 0, m, s, 0.0f, 1.0f, SCALAR_OF(row), r);
        }
#else
        float* to = out + row * columns + first + lane;
        // Hidden from the compiler, which would compute the address again for each element.
        asm("" : "+l"(to));
        auto store = [&](int q) {
            const float x[1][1] = {{get(q)}}, t = TERM_REPLACES_X ? x[0][0] : TERM(x, 0, m);
            const float y = POST(x, 0, m, s, t, HIT(first + 32 * q + lane), SCALAR_OF(row), r);
            if (32 * q < left) __stcs(to + 32 * q, y);
        };
        #pragma unroll
        for (int q = 0; q < IN_SHARED; ++q) store(q);
        if (IN_SHARED) fetch(row + gridDim.x, 0, IN_SHARED);
        #pragma unroll
        for (int q = IN_SHARED; q < PER_LANE; ++q) store(q);
#endif
    }
}
