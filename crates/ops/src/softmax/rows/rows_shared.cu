// Rows that fit into shared memory: one block per row, vectorized access. Rows of the first STAGED inputs are copied to shared
// memory and read once from global memory, those of others once or twice. A warp sums whole chunks of the row rule out of shared
// memory, without bank conflicts.
//
// A row that is not aligned is read from the aligned address before it: `shift` elements come before its first one, and the
// vectors at its ends are taken element by element.
//
//   THREADS      threads of a block
//   ALIGNED      rows start at multiples of 16 bytes and end there
//   STAGED       inputs whose rows are in shared memory
//   BUFFERS      2: the next row is copied to a second buffer while a row is computed
//   MOST_CHUNKS  chunks of a row at most

#define WARPS (THREADS / 32)
// Whether shared memory gets the terms in place of the first input.
#define STORE_TERMS (STAGED < INS || TERM_REPLACES_X)

// A thread has the same vectors in all passes, so that only maximum and sum need barriers. p is the vector's first element,
// counted from the aligned address.
#define EACH_VECTOR _Pragma("unroll 2") for (unsigned p = threadIdx.x * 4; p < words; p += THREADS * 4)
#define EACH_ELEMENT _Pragma("unroll") for (unsigned e = 0; e < 4; ++e)
#define INSIDE(p, shift) (ALIGNED || ((p) >= (shift) && (p) < (shift) + width))
#define ALL_INSIDE(p, shift) (ALIGNED || ((p) >= (shift) && (p) + 4 <= (shift) + width))

__device__ __forceinline__ void copy16(float* to, const float* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

__device__ __forceinline__ void copy4(float* to, const float* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}

// Waits for all copies of this thread but the last PENDING groups.
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void load_vector(float (&x)[4], const float* from) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

__device__ __forceinline__ void store_vector(float* to, const float (&x)[4]) {
    *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
}

extern "C" __global__ void __launch_bounds__(THREADS) rows(ROW_PARAMETERS) {
    const float* const in[INS] = {INPUTS};
    const float g_all = SCALAR == 1 ? scalar[0] : 0.0f;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    extern __shared__ float4 row_memory[];
    float* const memory = reinterpret_cast<float*>(row_memory);
    __shared__ float maxima[WARPS], chunk_sums[MOST_CHUNKS];
    const unsigned width = (unsigned)columns, words = ALIGNED ? width : (width + 6) / 4 * 4, row_words = STAGED * words;
    auto shift_of = [&](u64 row) { return ALIGNED ? 0 : (unsigned)(row * columns % 4); };
    // Starts copies of a row. A thread waits for them by itself, since it reads what it copied.
    auto fetch = [&](u64 row, float* to) {
        const unsigned shift = shift_of(row);
        const u64 from = row * columns - shift;
        EACH_VECTOR {
            if (ALL_INSIDE(p, shift)) {
                #pragma unroll
                for (int i = 0; i < STAGED; ++i) copy16(to + i * words + p, in[i] + from + p);
            } else {
                for (unsigned e = 0; e < 4; ++e)
                    if (INSIDE(p + e, shift)) {
                        #pragma unroll
                        for (int i = 0; i < STAGED; ++i) copy4(to + i * words + p + e, in[i] + from + p + e);
                    }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    unsigned turn = 0;
    if (BUFFERS == 2 && blockIdx.x < rows) fetch(blockIdx.x, memory);
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
        const u64 at = row * columns, mask_at = MASK_START(row);
        const unsigned shift = shift_of(row);
        const u64 from = at - shift;
        float* const staged = BUFFERS == 2 ? memory + turn * row_words : memory;
        if (BUFFERS == 1) {
            fetch(row, staged);
            copy_wait<0>();
        } else if (row + gridDim.x < rows) {
            fetch(row + gridDim.x, memory + (turn ^ 1) * row_words);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        // Four elements of an input from global memory. Rows of a mask may start at another distance from an aligned address.
        auto load_global = [&](float (&x)[4], int i, unsigned p) {
            if (IS_MASK(i) && !ALIGNED) {
                for (unsigned e = 0; e < 4; ++e)
                    x[e] = INSIDE(p + e, shift) ? in[i][mask_at + p + e - shift] : 0.0f;
                return;
            }
            const float* const row_of = in[i] + (IS_MASK(i) ? mask_at : from);
            if (ALL_INSIDE(p, shift)) {
                load_vector(x, row_of + p);
            } else {
                for (unsigned e = 0; e < 4; ++e) x[e] = INSIDE(p + e, shift) ? row_of[p + e] : 0.0f;
            }
        };
        float m = 0.0f;
        if (MAX) {
            m = NEG_INF;
            EACH_VECTOR {
                float x[INS][4];
                load_vector(x[0], staged + p);
                #pragma unroll
                for (int i = 1; i < INS; ++i) load_global(x[i], i, p);
                EACH_ELEMENT {
                    const float of = SCORE(x, e);
                    if (INSIDE(p + e, shift)) m = fmaxf(m, of);
                }
            }
            m = warp_max(m);
            if (lane == 0) maxima[warp] = m;
            __syncthreads();
            #pragma unroll
            for (int w = 0; w < WARPS; ++w) m = fmaxf(m, maxima[w]);
            m = __fadd_rn(m, 0.0f);
        }
        // Terms of inputs that are not all in shared memory. What lies beside the row is not read.
        if (STAGED < INS) {
            EACH_VECTOR {
                float x[INS][4], t[4];
                load_vector(x[0], staged + p);
                #pragma unroll
                for (int i = 1; i < INS; ++i) load_global(x[i], i, p);
                EACH_ELEMENT t[e] = TERM(x, e, m);
                store_vector(staged + p, t);
            }
        }
        __syncthreads();
        const unsigned chunks = (width + CHUNK - 1) / CHUNK;
        for (unsigned c = warp; c < chunks; c += WARPS) {
            float sum = 0.0f;
            const unsigned end = width < (c + 1) * CHUNK ? width : (c + 1) * CHUNK;
            #pragma unroll 8
            for (unsigned j = c * CHUNK + lane; j < end; j += 32) {
                float t;
                if (STAGED < INS) {
                    t = staged[shift + j];
                } else {
                    float x[INS][1];
                    #pragma unroll
                    for (int i = 0; i < INS; ++i) x[i][0] = staged[i * words + shift + j];
                    t = TERM(x, 0, m);
                    if (STORE_TERMS) staged[shift + j] = t;
                }
                sum = __fadd_rn(sum, t);
            }
            sum = warp_sum(sum);
            if (lane == 0) chunk_sums[c] = sum;
        }
        const float s = sum_of_chunks(chunk_sums, chunks), r = of_row(s);
        const unsigned label = label_of(labels, row, columns);
#if PER_ROW
        if (threadIdx.x == 0) {
            float x[INS][1];
            #pragma unroll
            for (int i = 0; i < INS; ++i) x[i][0] = in[i][at + label];
            out[row] = POST(x, 0, m, s, staged[shift + label], 1.0f, SCALAR_OF(row), r);
        }
#else
        EACH_VECTOR {
            float x[INS][4], t[4], y[4];
            #pragma unroll
            for (int i = 0; i < INS; ++i) {
                if (i < STAGED && !(i == 0 && STORE_TERMS)) {
                    load_vector(x[i], staged + i * words + p);
                } else {
                    load_global(x[i], i, p);
                }
            }
            if (STORE_TERMS) load_vector(t, staged + p);
            EACH_ELEMENT {
                y[e] = POST(x, e, m, s, STORE_TERMS ? t[e] : TERM(x, e, m), HIT(p + e - shift), SCALAR_OF(row), r);
            }
            if (ALL_INSIDE(p, shift)) {
                store_vector(out + from + p, y);
            } else {
                for (unsigned e = 0; e < 4; ++e)
                    if (INSIDE(p + e, shift)) out[from + p + e] = y[e];
            }
        }
#endif
        __syncthreads();
    }
}
