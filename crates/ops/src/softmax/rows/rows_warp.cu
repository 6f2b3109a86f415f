// Rows of up to a chunk: one warp per row, the row in registers. Element lane + 32 q is the lane's q-th, as in the row rule.
// Each input is read once and the result written once, 4 bytes per element.
//
//   THREADS     threads of a block, a warp for each row
//   PER_LANE    elements of a row per lane
//   EXACT       rows fill all lanes, so that no lane tests for the row's end
//   PROLOGUE_SLOT   the input that the prologue computes, if there is one

// Occupancy hides latency where a warp holds a single row; two inputs or a prologue need more registers.
#if INS == 1 && !defined(DITTO_PROLOGUE)
#define BOUNDS THREADS, 4
#else
#define BOUNDS THREADS
#endif
// Short rows leave registers to prefetch the next row.
#define PREFETCH (PER_LANE <= 8)

#define EACH _Pragma("unroll") for (unsigned q = 0; q < PER_LANE; ++q)
#define AT (lane + 32 * q)
#define IN (EXACT || AT < width)

#ifdef DITTO_PROLOGUE
#define READ(i, row, j) (i == PROLOGUE_SLOT ? prologue(prologue_with, row, columns, j) : in[i][(IS_MASK(i) ? MASK_START(row) : (row) * columns) + j])
#else
#define READ(i, row, j) in[i][(IS_MASK(i) ? MASK_START(row) : (row) * columns) + j]
#endif
#ifdef DITTO_EPILOGUE
#define STORE(at, j, y) epilogue_store(epilogue_with, out, at, j, y)
#else
#define STORE(at, j, y) out[at] = y
#endif

extern "C" __global__ void __launch_bounds__(BOUNDS) rows(ROW_PARAMETERS) {
    const float* const in[INS] = {INPUTS};
    const float g_all = SCALAR == 1 ? scalar[0] : 0.0f;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = (unsigned)columns;
    const u64 step = gridDim.x * (u64)(THREADS / 32);
    auto load = [&](float (&x)[INS][PER_LANE], u64 row) {
        EACH {
            #pragma unroll
            for (int i = 0; i < INS; ++i) x[i][q] = IN ? READ(i, row, AT) : 0.0f;
        }
    };
    float x[INS][PER_LANE], next[INS][PER_LANE];
    u64 row = blockIdx.x * (u64)(THREADS / 32) + warp;
    if (PREFETCH && row < rows) load(next, row);
    for (; row < rows; row += step) {
        const u64 at = row * columns;
        if (PREFETCH) {
            EACH {
                #pragma unroll
                for (int i = 0; i < INS; ++i) x[i][q] = next[i][q];
            }
            if (row + step < rows) load(next, row + step);
        } else {
            load(x, row);
        }
        float m = 0.0f;
        if (MAX) {
            m = NEG_INF;
            EACH {
                const float v = SCORE(x, q);
                if (IN) m = fmaxf(m, v);
            }
            m = __fadd_rn(warp_max(m), 0.0f);
        }
        float t[PER_LANE], s = 0.0f;
        EACH {
            t[q] = TERM(x, q, m);
            if (IN) s = __fadd_rn(s, t[q]);
        }
        s = __shfl_sync(0xffffffffu, warp_sum(s), 0);
        const float r = of_row(s);
        const unsigned label = label_of(labels, row, columns);
        EACH {
#if PER_ROW
            if (IN && AT == label) out[row] = POST(x, q, m, s, t[q], 1.0f, SCALAR_OF(row), r);
#else
            if (IN) STORE(at + AT, AT, POST(x, q, m, s, t[q], HIT(AT), SCALAR_OF(row), r));
#endif
        }
    }
}
