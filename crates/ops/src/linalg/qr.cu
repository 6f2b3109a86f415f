// Orthogonal factors of batches of tall matrices (m, n) by reflections. Legend of what is defined before this text:
//   BLOCK  columns of a block, the lanes of a warp
//   CHUNK  rows of a chunk of a sum
//   LARGE, SMALL, DOWN, UP  columns with an element of LARGE are multiplied by DOWN, those of elements below SMALL by UP
//
// In `h` the reflections of a block lie below the diagonal, which has ones that are not stored. All sums over rows are FMA
// chains of CHUNK rows, which are added in order. blockIdx.z goes round the batch.

typedef unsigned long long u64;

static_assert(BLOCK == 32 && CHUNK % BLOCK == 0, "a lane has a column, and a chunk ends with a tile");

// Element (i, q) of the reflections of a block, whose first row and column are those of `a`.
static __device__ __forceinline__ float reflection(const float* a, u64 i, unsigned q, unsigned width, u64 n) {
    if (q >= width || i < q) return 0.0f;
    return i == q ? 1.0f : a[i * n + q];
}

// Finds the reflections of `width` columns from row and column `from`, and their products.
//
// Thread mapping: a block has a matrix, a lane a column. Warps have chunks of the sums over rows, then rows; at the end a warp
// and a lane have a pair of reflections.
extern "C" __global__ void __launch_bounds__(1024)
qr_panel(float* __restrict__ h, float* __restrict__ tau, float* __restrict__ gram, unsigned from, unsigned width,
         unsigned blocks, u64 m, u64 n, u64 batch) {
    __shared__ float part[BLOCK][BLOCK], step[BLOCK], divisor;
    __shared__ int skip;
    const unsigned lane = threadIdx.x % BLOCK, warp = threadIdx.x / BLOCK;
    const u64 rows = m - from;
    for (u64 b = blockIdx.z; b < batch; b += gridDim.z) {
        float* a = h + b * m * n + from * n + from;
        for (unsigned c = 0; c < width; ++c) {
            const u64 first = c + 1, chunks = (rows - first + CHUNK - 1) / CHUNK;
            float sum = 0.0f;
            for (u64 k0 = 0; k0 < chunks; k0 += BLOCK) {
                float s = 0.0f;
                if (k0 + warp < chunks && lane < width) {
                    const u64 start = first + (k0 + warp) * CHUNK;
                    const u64 end = start + CHUNK < rows ? start + CHUNK : rows;
#pragma unroll 8
                    for (u64 i = start; i < end; ++i) s = __fmaf_rn(a[i * n + c], a[i * n + lane], s);
                }
                part[warp][lane] = s;
                __syncthreads();
                if (warp == 0) {
                    for (unsigned k = 0; k < BLOCK && k0 + k < chunks; ++k) {
                        sum = k0 + k == 0 ? part[k][lane] : __fadd_rn(sum, part[k][lane]);
                    }
                }
                __syncthreads();
            }
            if (warp == 0) {
                float* own = a + c * n;
                const float x = lane < width ? own[lane] : 0.0f;
                const float top = __shfl_sync(0xffffffffu, x, c), s = __shfl_sync(0xffffffffu, sum, c);
                const float pivot = -copysignf(__fsqrt_rn(__fmaf_rn(top, top, s)), top);
                const float d = __fsub_rn(top, pivot), t = __fdiv_rn(__fsub_rn(pivot, top), pivot);
                const float y = __fmul_rn(t, __fadd_rn(x, __fdiv_rn(sum, d)));
                if (s != 0.0f && lane >= c && lane < width) own[lane] = lane == c ? pivot : __fsub_rn(x, y);
                step[lane] = y;
                if (lane == 0) {
                    divisor = d;
                    skip = s == 0.0f;
                    tau[b * n + from + c] = s == 0.0f ? 0.0f : t;
                }
            }
            __syncthreads();
            if (!skip) {
                for (u64 i = first + warp; i < rows; i += BLOCK) {
                    float* x = a + i * n + lane;
                    const float old = lane < width ? *x : 0.0f;
                    const float v = __fdiv_rn(__shfl_sync(0xffffffffu, old, c), divisor);
                    if (lane >= c && lane < width) *x = lane == c ? v : __fmaf_rn(-v, step[lane], old);
                }
            }
            __syncthreads();
        }
        float all = 0.0f;
        for (u64 start = 0; start < rows; start += CHUNK) {
            const u64 end = start + CHUNK < rows ? start + CHUNK : rows;
            float s = 0.0f;
            for (u64 i = start; i < end; ++i) {
                s = __fmaf_rn(reflection(a, i, warp, width, n), reflection(a, i, lane, width, n), s);
            }
            all = start == 0 ? s : __fadd_rn(all, s);
        }
        gram[((b * blocks + from / BLOCK) * BLOCK + warp) * BLOCK + lane] = all;
        __syncthreads();
    }
}

// Applies the product of the reflections of a block, or its transpose, to the columns of x from `first` on.
//
// Thread mapping: a block has 32 columns. Eight warps have 4 dot products of each column; then a lane of one warp has a column,
// and solves for the factors; then warps have rows.
extern "C" __global__ void __launch_bounds__(256)
qr_apply(const float* h, const float* __restrict__ tau, const float* __restrict__ gram, float* x, unsigned from,
         unsigned width, unsigned blocks, u64 m, u64 n, u64 first, u64 batch, int transposed) {
    __shared__ float vs[BLOCK][BLOCK + 1], xs[BLOCK][BLOCK + 1], ts[BLOCK][BLOCK + 1];
    const unsigned tx = threadIdx.x % BLOCK, ty = threadIdx.x / BLOCK;
    const u64 rows = m - from, column = first + (u64)blockIdx.x * BLOCK + tx;
    const bool in = column < n;
    for (u64 b = blockIdx.z; b < batch; b += gridDim.z) {
        const float* a = h + b * m * n + from * n + from;
        const float* g = gram + (b * blocks + from / BLOCK) * BLOCK * BLOCK;
        float* own = x + b * m * n + from * n + column;
        float all[4] = {}, sums[4] = {};
        for (u64 i0 = 0; i0 < rows; i0 += BLOCK) {
            for (unsigned i = ty; i < BLOCK; i += 8) {
                const bool there = i0 + i < rows;
                vs[i][tx] = there ? reflection(a, i0 + i, tx, width, n) : 0.0f;
                xs[i][tx] = there && in ? own[(i0 + i) * n] : 0.0f;
            }
            __syncthreads();
            const unsigned depth = rows - i0 < BLOCK ? (unsigned)(rows - i0) : BLOCK;
            for (unsigned i = 0; i < depth; ++i) {
#pragma unroll
                for (unsigned r = 0; r < 4; ++r) sums[r] = __fmaf_rn(vs[i][ty + 8 * r], xs[i][tx], sums[r]);
            }
            __syncthreads();
            if ((i0 + BLOCK) % CHUNK == 0 || i0 + BLOCK >= rows) {
#pragma unroll
                for (unsigned r = 0; r < 4; ++r) {
                    all[r] = i0 < CHUNK ? sums[r] : __fadd_rn(all[r], sums[r]);
                    sums[r] = 0.0f;
                }
            }
        }
#pragma unroll
        for (unsigned r = 0; r < 4; ++r) ts[ty + 8 * r][tx] = all[r];
        __syncthreads();
        if (ty == 0) {
            for (unsigned k = 0; k < width; ++k) {
                const unsigned q = transposed ? k : width - 1 - k;
                float s = ts[q][tx];
                for (unsigned l = 0; l < k; ++l) {
                    const unsigned p = transposed ? l : width - 1 - l;
                    s = __fmaf_rn(-g[p * BLOCK + q], ts[p][tx], s);
                }
                ts[q][tx] = __fmul_rn(tau[b * n + from + q], s);
            }
        }
        __syncthreads();
        for (u64 i0 = 0; i0 < rows; i0 += BLOCK) {
            for (unsigned i = ty; i < BLOCK; i += 8) {
                vs[i][tx] = i0 + i < rows ? reflection(a, i0 + i, tx, width, n) : 0.0f;
            }
            __syncthreads();
            for (unsigned i = ty; i < BLOCK; i += 8) {
                if (!in || i0 + i >= rows) continue;
                float y = own[(i0 + i) * n];
                for (unsigned q = 0; q < width; ++q) y = __fmaf_rn(-vs[i][q], ts[q][tx], y);
                own[(i0 + i) * n] = y;
            }
            __syncthreads();
        }
    }
}

// Finds what each column is multiplied by.
//
// Thread mapping: a block has 32 columns, a lane each, and warps have rows.
extern "C" __global__ void __launch_bounds__(1024)
qr_scales(const float* __restrict__ a, float* __restrict__ scales, u64 m, u64 n, u64 batch) {
    __shared__ float part[BLOCK][BLOCK];
    const unsigned lane = threadIdx.x % BLOCK, warp = threadIdx.x / BLOCK;
    const u64 column = (u64)blockIdx.x * BLOCK + lane;
    for (u64 b = blockIdx.z; b < batch; b += gridDim.z) {
        float largest = 0.0f;
        if (column < n) {
            for (u64 i = warp; i < m; i += BLOCK) largest = fmaxf(largest, fabsf(a[(b * m + i) * n + column]));
        }
        part[warp][lane] = largest;
        __syncthreads();
        if (warp == 0 && column < n) {
            for (unsigned k = 1; k < BLOCK; ++k) largest = fmaxf(largest, part[k][lane]);
            scales[b * n + column] = largest >= LARGE ? DOWN : largest < SMALL ? UP : 1.0f;
        }
        __syncthreads();
    }
}

// Copies matrices, multiplied column by column.
extern "C" __global__ void __launch_bounds__(256)
qr_start(const float* __restrict__ from, float* __restrict__ to, const float* __restrict__ scales, u64 matrix, u64 n,
         u64 words) {
    for (u64 i = blockIdx.x * 256ull + threadIdx.x; i < words; i += gridDim.x * 256ull) {
        to[i] = __fmul_rn(from[i], scales[i / matrix * n + i % n]);
    }
}

// Takes R out of h, which keeps the reflections with ones and zeros; q becomes the first columns of the identity.
extern "C" __global__ void __launch_bounds__(256)
qr_split(float* __restrict__ h, float* __restrict__ r, float* __restrict__ q, const float* __restrict__ scales, u64 m,
         u64 n, u64 batch) {
    for (u64 at = blockIdx.x * 256ull + threadIdx.x; at < batch * m * n; at += gridDim.x * 256ull) {
        const u64 j = at % n, i = at / n % m, b = at / n / m;
        const float x = h[at];
        if (i < n) r[(b * n + i) * n + j] = i <= j ? __fdiv_rn(x, scales[b * n + j]) : 0.0f;
        if (i <= j) h[at] = i == j ? 1.0f : 0.0f;
        q[at] = i == j ? 1.0f : 0.0f;
    }
}
