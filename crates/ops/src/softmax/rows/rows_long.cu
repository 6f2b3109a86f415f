// Rows that do not fit into shared memory: one block per row. The row is read three times (maximum, sum, results), the
// second and third time mostly from the L2 cache. Each warp sums whole chunks of the row rule; the sums of chunks go through
// the workspace level by level.
//
//   THREADS     threads of a block

#define WARPS (THREADS / 32)

// Where chunk c of `count` elements ends.
#define CHUNK_END(c, count) ((count) < ((c) + 1) * CHUNK ? (count) : ((c) + 1) * CHUNK)

extern "C" __global__ void __launch_bounds__(THREADS) rows(ROW_PARAMETERS) {
    const float* const in[INS] = {INPUTS};
    const float g_all = SCALAR == 1 ? scalar[0] : 0.0f;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __shared__ float maxima[WARPS];
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const u64 at = row * columns, mask_at = MASK_START(row);
        auto load = [&](float (&x)[INS][1], u64 j) {
            #pragma unroll
            for (int i = 0; i < INS; ++i) x[i][0] = in[i][(IS_MASK(i) ? mask_at : at) + j];
        };
        float x[INS][1], m = 0.0f;
        if (MAX) {
            m = NEG_INF;
            #pragma unroll 8
            for (u64 j = threadIdx.x; j < columns; j += THREADS) {
                load(x, j);
                m = fmaxf(m, SCORE(x, 0));
            }
            m = warp_max(m);
            if (lane == 0) maxima[warp] = m;
            __syncthreads();
            for (int w = 0; w < WARPS; ++w) m = fmaxf(m, maxima[w]);
            m = __fadd_rn(m, 0.0f);
        }
        float* sums = workspace + row * workspace_words;
        u64 count = (columns + CHUNK - 1) / CHUNK;
        for (u64 c = warp; c < count; c += WARPS) {
            float s = 0.0f;
            const u64 end = CHUNK_END(c, columns);
            #pragma unroll 8
            for (u64 j = c * CHUNK + lane; j < end; j += 32) {
                load(x, j);
                s = __fadd_rn(s, TERM(x, 0, m));
            }
            s = warp_sum(s);
            if (lane == 0) sums[c] = s;
        }
        __syncthreads();
        while (count > 1) {
            float* next = sums + count;
            const u64 groups = (count + CHUNK - 1) / CHUNK;
            for (u64 c = warp; c < groups; c += WARPS) {
                float s = 0.0f;
                const u64 end = CHUNK_END(c, count);
                for (u64 j = c * CHUNK + lane; j < end; j += 32) s = __fadd_rn(s, sums[j]);
                s = warp_sum(s);
                if (lane == 0) next[c] = s;
            }
            __syncthreads();
            sums = next;
            count = groups;
        }
        const float s = sums[0], r = of_row(s);
        const unsigned label = label_of(labels, row, columns);
#if PER_ROW
        if (threadIdx.x == 0) {
            load(x, label);
            out[row] = POST(x, 0, m, s, TERM(x, 0, m), 1.0f, SCALAR_OF(row), r);
        }
#else
        #pragma unroll 4
        for (u64 j = threadIdx.x; j < columns; j += THREADS) {
            load(x, j);
            out[at + j] = POST(x, 0, m, s, TERM(x, 0, m), HIT(j), SCALAR_OF(row), r);
        }
#endif
        __syncthreads();
    }
}
