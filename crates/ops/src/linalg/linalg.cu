// Blocked elimination of batches of matrices. `#define BLOCK` before this text is the rows of a diagonal block.
//
// A matrix is an address and the distances of matrices, rows and columns in words, which may be negative. Every element
// has one chain of FMAs in the order of elimination: it starts from the input, a launch continues from what the launch
// before wrote, and a division comes last. All kernels have 256 threads; blockIdx.z goes round the batch.

typedef unsigned long long u64;
typedef long long i64;

#define MATRIX(x) float* x, i64 x##_batch, i64 x##_row, i64 x##_column

constexpr unsigned TILE = 64;
constexpr unsigned DEPTH = 16;
constexpr unsigned SIDE = 32;

static __device__ __forceinline__ i64 size_of(i64 x) { return x < 0 ? -x : x; }

extern "C" __global__ void __launch_bounds__(256)
copy_words(const float* __restrict__ from, float* __restrict__ to, u64 n) {
    for (u64 i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull) to[i] = from[i];
}

// The symmetric part of dense matrices a, on and below the diagonal of l; zeros above it.
//
// Thread mapping: a block has a tile of 32 by 32; the tile across the diagonal passes through shared memory, so that both
// are read by rows. 8 bytes read and 4 written per element.
extern "C" __global__ void __launch_bounds__(256)
symmetric_part(const float* __restrict__ a, MATRIX(l), unsigned n, u64 batch) {
    __shared__ float across[SIDE][SIDE + 1], own[SIDE][SIDE + 1];
    const unsigned tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    const unsigned i0 = blockIdx.y * SIDE, j0 = blockIdx.x * SIDE;
    for (u64 b = blockIdx.z; b < batch; b += gridDim.z) {
        const float* m = a + b * n * n;
        float* out = l + (i64)b * l_batch;
        for (unsigned r = ty; r < SIDE; r += 8) {
            own[r][tx] = i0 + r < n && j0 + tx < n ? m[(u64)(i0 + r) * n + j0 + tx] : 0.0f;
            across[r][tx] = j0 + r < n && i0 + tx < n ? m[(u64)(j0 + r) * n + i0 + tx] : 0.0f;
        }
        __syncthreads();
        for (unsigned r = ty; r < SIDE; r += 8) {
            // Neighbouring threads write neighbouring words in either layout.
            const unsigned i = l_column == 1 ? r : tx, j = l_column == 1 ? tx : r;
            if (i0 + i < n && j0 + j < n) {
                const float s = __fmul_rn(0.5f, __fadd_rn(own[i][j], across[j][i]));
                out[(i64)(i0 + i) * l_row + (i64)(j0 + j) * l_column] = j0 + j <= i0 + i ? s : 0.0f;
            }
        }
        __syncthreads();
    }
}

// The factor of blocks of n rows (at most BLOCK), in place. Threads of a block share one matrix in shared memory; column
// after column is finished, and its products are subtracted from all elements to the right.
extern "C" __global__ void __launch_bounds__(256)
cholesky_block(MATRIX(l), unsigned n, u64 batch) {
    __shared__ float s[BLOCK][BLOCK + 1];
    const unsigned t = threadIdx.x;
    for (u64 b = blockIdx.z; b < batch; b += gridDim.z) {
        float* m = l + (i64)b * l_batch;
        for (unsigned e = t; e < n * n; e += 256) {
            const unsigned i = l_column == 1 ? e / n : e % n, j = l_column == 1 ? e % n : e / n;
            s[i][j] = j <= i ? m[(i64)i * l_row + (i64)j * l_column] : 0.0f;
        }
        __syncthreads();
        for (unsigned j = 0; j < n; ++j) {
            const float d = s[j][j];
            const float pivot = d > 0.0f ? __fsqrt_rn(d) : __int_as_float(0x7fc00000);
            __syncthreads();
            for (unsigned i = j + t; i < n; i += 256) s[i][j] = i == j ? pivot : __fdiv_rn(s[i][j], pivot);
            __syncthreads();
            // Thread mapping: 16 by 16 threads go over the rows and columns that are left.
            for (unsigned i = j + 1 + t / 16; i < n; i += 16) {
                for (unsigned k = j + 1 + t % 16; k <= i; k += 16) s[i][k] = __fmaf_rn(-s[i][j], s[k][j], s[i][k]);
            }
            __syncthreads();
        }
        for (unsigned e = t; e < n * n; e += 256) {
            const unsigned i = l_column == 1 ? e / n : e % n, j = l_column == 1 ? e % n : e / n;
            if (j <= i) m[(i64)i * l_row + (i64)j * l_column] = s[i][j];
        }
        __syncthreads();
    }
}

// Solves a x = b in place, for n rows (at most BLOCK) of x with m columns; a is lower triangular.
//
// Thread mapping: a block has 32 columns, and goes over the rows 32 at a time. Eight warps subtract the products of the
// rows above, a thread for 4 elements of a column; then one warp, a column per lane, substitutes.
extern "C" __global__ void __launch_bounds__(256)
solve_block(MATRIX(a), MATRIX(x), unsigned n, u64 m, u64 batch, int unit) {
    __shared__ float as[SIDE][SIDE + 1], xs[SIDE][SIDE + 1], known[SIDE][SIDE + 1];
    const unsigned t = threadIdx.x, lane = t % 32, warp = t / 32;
    const u64 first = (u64)blockIdx.x * SIDE;
    const unsigned width = m - first < SIDE ? (unsigned)(m - first) : SIDE;
    const bool by_column = size_of(x_column) == 1, a_by_column = size_of(a_column) == 1;
    for (u64 b = blockIdx.z; b < batch; b += gridDim.z) {
        const float* am = a + (i64)b * a_batch;
        float* xm = x + (i64)b * x_batch + (i64)first * x_column;
        for (unsigned i0 = 0; i0 < n; i0 += SIDE) {
            const unsigned rows = n - i0 < SIDE ? n - i0 : SIDE;
            for (unsigned e = t; e < SIDE * SIDE; e += 256) {
                const unsigned i = by_column ? e / SIDE : e % SIDE, j = by_column ? e % SIDE : e / SIDE;
                xs[i][j] = i < rows && j < width ? xm[(i64)(i0 + i) * x_row + (i64)j * x_column] : 0.0f;
            }
            for (unsigned k0 = 0; k0 <= i0; k0 += SIDE) {
                __syncthreads();
                for (unsigned e = t; e < SIDE * SIDE; e += 256) {
                    const unsigned i = a_by_column ? e / SIDE : e % SIDE, k = a_by_column ? e % SIDE : e / SIDE;
                    const bool in = i < rows && k0 + k <= i0 + i;
                    as[i][k] = in ? am[(i64)(i0 + i) * a_row + (i64)(k0 + k) * a_column] : 0.0f;
                }
                if (k0 == i0) break;
                for (unsigned e = t; e < SIDE * SIDE; e += 256) {
                    const unsigned k = by_column ? e / SIDE : e % SIDE, j = by_column ? e % SIDE : e / SIDE;
                    known[k][j] = j < width ? xm[(i64)(k0 + k) * x_row + (i64)j * x_column] : 0.0f;
                }
                __syncthreads();
                float sums[4];
#pragma unroll
                for (unsigned r = 0; r < 4; ++r) sums[r] = xs[warp + 8 * r][lane];
#pragma unroll 8
                for (unsigned k = 0; k < SIDE; ++k) {
                    const float v = known[k][lane];
#pragma unroll
                    for (unsigned r = 0; r < 4; ++r) sums[r] = __fmaf_rn(-as[warp + 8 * r][k], v, sums[r]);
                }
#pragma unroll
                for (unsigned r = 0; r < 4; ++r) xs[warp + 8 * r][lane] = sums[r];
            }
            __syncthreads();
            if (warp == 0) {
                float v[SIDE];
#pragma unroll
                for (unsigned i = 0; i < SIDE; ++i) {
                    float s = xs[i][lane];
#pragma unroll
                    for (unsigned k = 0; k < i; ++k) s = __fmaf_rn(-as[i][k], v[k], s);
                    v[i] = unit || i >= rows ? s : __fdiv_rn(s, as[i][i]);
                    xs[i][lane] = v[i];
                }
            }
            __syncthreads();
            for (unsigned e = t; e < SIDE * SIDE; e += 256) {
                const unsigned i = by_column ? e / SIDE : e % SIDE, j = by_column ? e % SIDE : e / SIDE;
                if (i < rows && j < width) xm[(i64)(i0 + i) * x_row + (i64)j * x_column] = xs[i][j];
            }
            __syncthreads();
        }
    }
}

// c -= a b, for c of `rows` by `columns` with `terms` terms. part: 0 for all of c, 1 for its elements on and below the
// diagonal, 2 for those on and above it.
//
// Thread mapping: a block has a tile of 64 by 64, a thread 4 by 4 elements, 16 apart. Terms pass through shared memory, 16
// at a time.
extern "C" __global__ void __launch_bounds__(256)
update(MATRIX(c), MATRIX(a), MATRIX(b), unsigned rows, unsigned columns, unsigned terms, u64 batch, int part) {
    __shared__ float as[DEPTH][TILE + 1], bs[DEPTH][TILE + 1];
    const unsigned t = threadIdx.x, tx = t % 16, ty = t / 16;
    const unsigned i0 = blockIdx.y * TILE, j0 = blockIdx.x * TILE;
    if (part == 1 && j0 > i0 || part == 2 && i0 > j0) return;
    const bool a_by_term = size_of(a_column) == 1, b_by_term = size_of(b_row) == 1;
    for (u64 e = blockIdx.z; e < batch; e += gridDim.z) {
        float* cm = c + (i64)e * c_batch;
        const float* am = a + (i64)e * a_batch;
        const float* bm = b + (i64)e * b_batch;
        float sums[4][4];
#pragma unroll
        for (unsigned r = 0; r < 4; ++r) {
#pragma unroll
            for (unsigned q = 0; q < 4; ++q) {
                const unsigned i = i0 + ty + 16 * r, j = j0 + tx + 16 * q;
                sums[r][q] = i < rows && j < columns ? cm[(i64)i * c_row + (i64)j * c_column] : 0.0f;
            }
        }
        for (unsigned k0 = 0; k0 < terms; k0 += DEPTH) {
            const unsigned depth = terms - k0 < DEPTH ? terms - k0 : DEPTH;
            for (unsigned w = t; w < DEPTH * TILE; w += 256) {
                unsigned k = a_by_term ? w % DEPTH : w / TILE, i = a_by_term ? w / DEPTH : w % TILE;
                as[k][i] = k < depth && i0 + i < rows ? am[(i64)(i0 + i) * a_row + (i64)(k0 + k) * a_column] : 0.0f;
                k = b_by_term ? w % DEPTH : w / TILE;
                i = b_by_term ? w / DEPTH : w % TILE;
                bs[k][i] = k < depth && j0 + i < columns ? bm[(i64)(k0 + k) * b_row + (i64)(j0 + i) * b_column] : 0.0f;
            }
            __syncthreads();
            for (unsigned k = 0; k < depth; ++k) {
                float x[4], y[4];
#pragma unroll
                for (unsigned r = 0; r < 4; ++r) x[r] = -as[k][ty + 16 * r], y[r] = bs[k][tx + 16 * r];
#pragma unroll
                for (unsigned r = 0; r < 4; ++r) {
#pragma unroll
                    for (unsigned q = 0; q < 4; ++q) sums[r][q] = __fmaf_rn(x[r], y[q], sums[r][q]);
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (unsigned r = 0; r < 4; ++r) {
#pragma unroll
            for (unsigned q = 0; q < 4; ++q) {
                const unsigned i = i0 + ty + 16 * r, j = j0 + tx + 16 * q;
                const bool wanted = part == 0 || (part == 1 ? j <= i : i <= j);
                if (wanted && i < rows && j < columns) cm[(i64)i * c_row + (i64)j * c_column] = sums[r][q];
            }
        }
    }
}

// The rows of all matrices in their order, and signs of 1 after them.
extern "C" __global__ void __launch_bounds__(256)
lu_start(float* __restrict__ rows, u64 n, u64 batch) {
    for (u64 i = blockIdx.x * 256ull + threadIdx.x; i < n + batch; i += gridDim.x * 256ull) {
        rows[i] = i < n ? (float)i : 1.0f;
    }
}

// Factors `width` (at most 32) columns of n rows from row and column `from`, with row exchanges inside these columns. Notes
// the row that each was exchanged with, exchanges the numbers of the rows, and turns the sign.
//
// Thread mapping: a block has a matrix. Threads search a column for the pivot, rows 1024 apart; then a warp has a row at
// a time, and a lane one of its columns.
extern "C" __global__ void __launch_bounds__(1024)
lu_panel(MATRIX(m), unsigned* __restrict__ swaps, float* __restrict__ rows, unsigned from, unsigned width, unsigned n,
         u64 batch) {
    __shared__ u64 found[32];
    const unsigned t = threadIdx.x, lane = t % 32, warp = t / 32;
    const bool in = lane < width;
    for (u64 b = blockIdx.z; b < batch; b += gridDim.z) {
        float* p = m + (i64)b * m_batch;
        for (unsigned c = 0; c < width; ++c) {
            const unsigned j = from + c;
            // The largest size, then the first row: both in one number to compare.
            u64 best = 0;
            for (unsigned i = j + t; i < n; i += 1024) {
                const float v = p[(i64)i * m_row + (i64)j * m_column];
                const unsigned size = v != v ? 0xffffffffu : __float_as_uint(v) & 0x7fffffffu;
                const u64 one = ((u64)size << 32) | (0xffffffffu - i);
                if (one > best) best = one;
            }
            for (unsigned d = 16; d; d /= 2) {
                const u64 other = __shfl_xor_sync(0xffffffffu, best, d);
                if (other > best) best = other;
            }
            if (lane == 0) found[warp] = best;
            __syncthreads();
            best = found[lane];
            for (unsigned d = 16; d; d /= 2) {
                const u64 other = __shfl_xor_sync(0xffffffffu, best, d);
                if (other > best) best = other;
            }
            const unsigned with = 0xffffffffu - (unsigned)best;
            if (t == 0) {
                swaps[b * n + j] = with;
                if (with != j) {
                    float* row = rows + b * n;
                    const float x = row[j];
                    row[j] = row[with];
                    row[with] = x;
                    rows[batch * n + b] = -rows[batch * n + b];
                }
            }
            if (t < width && with != j) {
                float* x = p + (i64)j * m_row + (i64)(from + t) * m_column;
                float* y = p + (i64)with * m_row + (i64)(from + t) * m_column;
                const float old = *x;
                *x = *y;
                *y = old;
            }
            __syncthreads();
            const float own = in ? p[(i64)j * m_row + (i64)(from + lane) * m_column] : 0.0f;
            const float pivot = __shfl_sync(0xffffffffu, own, c);
            for (unsigned i = j + 1 + warp; i < n; i += 32) {
                float* x = p + (i64)i * m_row + (i64)(from + lane) * m_column;
                const float v = in ? *x : 0.0f;
                const float s = __shfl_sync(0xffffffffu, v, c);
                const float l = pivot == 0.0f ? s : __fdiv_rn(s, pivot);
                if (in && lane >= c) *x = lane == c ? l : __fmaf_rn(-l, own, v);
            }
            __syncthreads();
        }
    }
}

// Exchanges the n rows outside of columns `from` to `from + width` as these did. Thread mapping: a thread has a column.
extern "C" __global__ void __launch_bounds__(256)
lu_swap(MATRIX(m), const unsigned* __restrict__ swaps, unsigned from, unsigned width, unsigned n, unsigned columns,
        u64 batch) {
    const unsigned k = blockIdx.x * 256 + threadIdx.x;
    if (k >= columns || (k >= from && k < from + width)) return;
    for (u64 b = blockIdx.z; b < batch; b += gridDim.z) {
        float* p = m + (i64)b * m_batch + (i64)k * m_column;
        for (unsigned j = from; j < from + width; ++j) {
            const unsigned with = swaps[b * n + j];
            if (with == j) continue;
            const float x = p[(i64)j * m_row];
            p[(i64)j * m_row] = p[(i64)with * m_row];
            p[(i64)with * m_row] = x;
        }
    }
}
