// Blocked elimination of batches of matrices. `#define BLOCK` before this text is the rows of a diagonal block.
//
// A matrix is an address and the distances of matrices, rows and columns in words, which may be negative. Every element
// has one chain of FMAs in the order of elimination: it starts from the input, a launch continues from what the launch
// before wrote, and a division comes last. Most kernels have 256 threads; blockIdx.z goes round the batch.

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

// The factor of a symmetric positive definite matrix, in tiles of 32 by 32. A tile starts from the symmetric part of a, and subtracts
// the products of the tiles to its left, one after another. Then a tile on the diagonal is factored, and one below it is solved with the
// tile on the diagonal. The tile across the diagonal gets zeros.
//
// A block takes jobs in the order of columns, then of rows: first the tile on the diagonal with the one to its left, which are what all
// others wait for, then the tiles further down. It waits for tiles that others took before, so no order of blocks can hold them up. The
// tiles of a row are finished in order, so a count of them says which are there.
//
// Thread mapping of products: 16 by 8 threads have 2 by 4 neighbouring elements each. n^3 / 3 flops, and n^3 / 48 words read
// from cache.

constexpr unsigned PITCH = SIDE + 4;

// A tile in shared memory, its columns one after another.
typedef float (*Columns)[PITCH];

// The matrices of one element of the batch, and how many tiles of each row are there.
struct Factor {
    const float* a;
    float* l;
    i64 row, column;
    unsigned n;
    unsigned* done;
};

// All threads wait until a row has more than `k` tiles; `known` is how many it had at last.
static __device__ __forceinline__ void wait_for(const Factor& f, unsigned row, unsigned k, unsigned& known) {
    __shared__ unsigned seen;
    if (k < known) return;
    if (threadIdx.x == 0) {
        unsigned value;
        for (;;) {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(f.done + row) : "memory");
            if (value > k) break;
            __nanosleep(20);
        }
        seen = value;
    }
    __syncthreads();
    known = seen;
    __syncthreads();
}

// What the threads of a block wrote before the last barrier is there for all who see the count.
static __device__ __forceinline__ void announce(const Factor& f, unsigned row, unsigned count) {
    __threadfence();
    atomicExch(f.done + row, count);
}

// Zeros outside of the matrix. Neighbouring threads read neighbouring words, and write to different banks.
static __device__ __forceinline__ void load_tile(const Factor& f, unsigned i0, unsigned k0, Columns to) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float v[8];
#pragma unroll
    for (unsigned r = 0; r < 8; ++r) {
        const unsigned part = r * 4 + warp;
        const unsigned k = f.column == 1 ? part % 4 * 8 + lane % 8 : part % 8 * 4 + lane / 8;
        const unsigned i = f.column == 1 ? part / 4 * 4 + lane / 8 : part / 8 * 8 + lane % 8;
        v[r] = i0 + i < f.n && k0 + k < f.n ? __ldcg(f.l + (i64)(i0 + i) * f.row + (i64)(k0 + k) * f.column) : 0.0f;
    }
#pragma unroll
    for (unsigned r = 0; r < 8; ++r) {
        const unsigned part = r * 4 + warp;
        const unsigned k = f.column == 1 ? part % 4 * 8 + lane % 8 : part % 8 * 4 + lane / 8;
        const unsigned i = f.column == 1 ? part / 4 * 4 + lane / 8 : part / 8 * 8 + lane % 8;
        to[k][i] = v[r];
    }
}

// Writes a tile on or below the diagonal, and the zeros across it.
static __device__ __forceinline__ void store_tile(const Factor& f, unsigned i0, unsigned j0, Columns from) {
#pragma unroll
    for (unsigned e = threadIdx.x; e < SIDE * SIDE; e += 128) {
        const unsigned i = f.column == 1 ? e / SIDE : e % SIDE, j = f.column == 1 ? e % SIDE : e / SIDE;
        if (i0 + i < f.n && j0 + j < f.n)
            f.l[(i64)(i0 + i) * f.row + (i64)(j0 + j) * f.column] = j0 + j <= i0 + i ? from[j][i] : 0.0f;
        if (i0 != j0 && j0 + i < f.n && i0 + j < f.n) f.l[(i64)(j0 + i) * f.row + (i64)(i0 + j) * f.column] = 0.0f;
    }
}

typedef float Sums[2][4];

static __device__ __forceinline__ void subtract_products(Columns left, Columns above, Sums& sums) {
    const unsigned tx = threadIdx.x % 8, ty = threadIdx.x / 8;
#pragma unroll 8
    for (unsigned k = 0; k < SIDE; ++k) {
        const float2 x = *reinterpret_cast<const float2*>(&left[k][2 * ty]);
        const float4 y = *reinterpret_cast<const float4*>(&above[k][4 * tx]);
        const float ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (unsigned q = 0; q < 4; ++q) {
            sums[0][q] = __fmaf_rn(-x.x, ys[q], sums[0][q]);
            sums[1][q] = __fmaf_rn(-x.y, ys[q], sums[1][q]);
        }
    }
}

static __device__ __forceinline__ void keep(const Sums& sums, Columns to) {
    const unsigned tx = threadIdx.x % 8, ty = threadIdx.x / 8;
#pragma unroll
    for (unsigned q = 0; q < 4; ++q) *reinterpret_cast<float2*>(&to[4 * tx + q][2 * ty]) = make_float2(sums[0][q], sums[1][q]);
}

// The symmetric part of a tile. Both halves are read by rows, the one across the diagonal through shared memory.
static __device__ __forceinline__ void symmetric_part(const Factor& f, unsigned i0, unsigned j0, Columns left, Columns above, Sums& sums) {
    const unsigned tx = threadIdx.x % 8, ty = threadIdx.x / 8;
#pragma unroll
    for (unsigned e = threadIdx.x; e < SIDE * SIDE; e += 128) {
        const unsigned i = e / SIDE, j = e % SIDE;
        left[i][j] = i0 + i < f.n && j0 + j < f.n ? f.a[(u64)(i0 + i) * f.n + j0 + j] : 0.0f;
        above[i][j] = j0 + i < f.n && i0 + j < f.n ? f.a[(u64)(j0 + i) * f.n + i0 + j] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (unsigned r = 0; r < 2; ++r) {
#pragma unroll
        for (unsigned q = 0; q < 4; ++q) sums[r][q] = __fmul_rn(0.5f, __fadd_rn(left[2 * ty + r][4 * tx + q], above[4 * tx + q][2 * ty + r]));
    }
    __syncthreads();
}

// Factors a tile in place: a lane of the first warp has a row.
static __device__ __forceinline__ void factor_tile(Columns s) {
    if (threadIdx.x < 32) {
        const unsigned lane = threadIdx.x;
        float row[SIDE];
#pragma unroll
        for (unsigned k = 0; k < SIDE; ++k) row[k] = s[k][lane];
        // The diagonal apart: the next pivot needs nothing of other lanes.
        float diagonal = s[lane][lane];
#pragma unroll
        for (unsigned j = 0; j < SIDE; ++j) {
            const float d = __shfl_sync(0xffffffffu, diagonal, j);
            const float pivot = d > 0.0f ? __fsqrt_rn(d) : __int_as_float(0x7fc00000);
            row[j] = lane == j ? pivot : __fdiv_rn(row[j], pivot);
            diagonal = __fmaf_rn(-row[j], row[j], diagonal);
#pragma unroll
            for (unsigned k = j + 1; k < SIDE; ++k) row[k] = __fmaf_rn(-row[j], __shfl_sync(0xffffffffu, row[j], k), row[k]);
        }
#pragma unroll
        for (unsigned k = 0; k < SIDE; ++k) {
            if (k <= lane) s[k][lane] = row[k];
        }
    }
    __syncthreads();
}

// Solves x dᵀ = s in place for a tile: d is lower triangular. Four threads have a row, each every fourth column.
static __device__ __noinline__ void solve_tile(Columns s, Columns d) {
    const unsigned i = threadIdx.x / 4, g = threadIdx.x % 4;
    float row[SIDE / 4];
#pragma unroll
    for (unsigned m = 0; m < SIDE / 4; ++m) row[m] = s[4 * m + g][i];
#pragma unroll
    for (unsigned j = 0; j < SIDE; ++j) {
        const float x = __shfl_sync(0xffffffffu, __fdiv_rn(row[j / 4], d[j][j]), j % 4, 4);
        if (g == j % 4) row[j / 4] = x;
#pragma unroll
        for (unsigned m = j / 4; m < SIDE / 4; ++m) {
            if (4 * m + g > j) row[m] = __fmaf_rn(-x, d[j][4 * m + g], row[m]);
        }
    }
#pragma unroll
    for (unsigned m = 0; m < SIDE / 4; ++m) s[4 * m + g][i] = row[m];
    __syncthreads();
}

// `work` is zero at first: the number of jobs that were taken, then the counts of the rows of each matrix.
extern "C" __global__ void __launch_bounds__(128)
cholesky_tiles(const float* __restrict__ a, MATRIX(l), unsigned n, u64 batch, unsigned* work) {
    __shared__ __align__(16) float left[SIDE][PITCH], above[SIDE][PITCH];
    __shared__ u64 taken;
    const unsigned t = threadIdx.x, tiles = (n + SIDE - 1) / SIDE;
    // The column of the job that was taken last, and the number of its first job.
    unsigned column = 0;
    u64 start = 0;
    const auto jobs = [&] { return (tiles - column > 2 ? tiles - column - 1 : 1) * batch; };
    for (;;) {
        __syncthreads();
        if (t == 0) taken = atomicAdd(reinterpret_cast<u64*>(work), 1ull);
        __syncthreads();
        const u64 number = taken;
        while (column < tiles && number >= start + jobs()) {
            start += jobs();
            ++column;
        }
        if (column == tiles) return;
        const u64 b = (number - start) % batch;
        const unsigned job = (unsigned)((number - start) / batch), k0 = column * SIDE;
        const Factor f = {a + b * n * n, l + (i64)b * l_batch, l_row, l_column, n, work + 2 + b * tiles};
        // The job's row of tiles, and the tile of it that is solved.
        const unsigned row = job > 0 ? column + 1 + job : column, solved = job > 0 || column == 0 ? column : column - 1;
        Sums sums, diagonal;
        symmetric_part(f, row * SIDE, solved * SIDE, left, above, sums);
        if (job == 0) symmetric_part(f, k0, k0, left, above, diagonal);
        unsigned known = 0, known_above = 0;
        for (unsigned k = 0; k < solved; ++k) {
            wait_for(f, row, k, known);
            wait_for(f, solved, k, known_above);
            __syncthreads();
            load_tile(f, row * SIDE, k * SIDE, left);
            load_tile(f, solved * SIDE, k * SIDE, above);
            __syncthreads();
            subtract_products(left, above, sums);
            if (job == 0) subtract_products(left, left, diagonal);
        }
        if (row != solved) {
            __syncthreads();
            keep(sums, left);
            wait_for(f, solved, solved, known_above);
            load_tile(f, solved * SIDE, solved * SIDE, above);
            __syncthreads();
            solve_tile(left, above);
            store_tile(f, row * SIDE, solved * SIDE, left);
            if (job == 0) subtract_products(left, left, diagonal);
            __syncthreads();
            if (t == 32) announce(f, row, solved + 1);
        }
        if (job > 0) continue;
        keep(diagonal, above);
        __syncthreads();
        factor_tile(above);
        store_tile(f, k0, k0, above);
        __syncthreads();
        if (t == 0) announce(f, row, column + 1);
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
                for (unsigned i = 0; i < SIDE; ++i) v[i] = xs[i][lane];
#pragma unroll
                for (unsigned k = 0; k < SIDE; ++k) {
                    if (!unit && k < rows) v[k] = __fdiv_rn(v[k], as[k][k]);
#pragma unroll
                    for (unsigned i = k + 1; i < SIDE; ++i) v[i] = __fmaf_rn(-as[i][k], v[k], v[i]);
                }
#pragma unroll
                for (unsigned i = 0; i < SIDE; ++i) xs[i][lane] = v[i];
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

// c -= a b, for c of `rows` by `columns` with `terms` terms.
//
// Thread mapping: a block has a tile of 64 by 64, a thread 4 by 4 elements, 16 apart. Terms pass through shared memory, 16
// at a time.
extern "C" __global__ void __launch_bounds__(256)
update(MATRIX(c), MATRIX(a), MATRIX(b), unsigned rows, unsigned columns, unsigned terms, u64 batch) {
    __shared__ float as[DEPTH][TILE + 1], bs[DEPTH][TILE + 1];
    const unsigned t = threadIdx.x, tx = t % 16, ty = t / 16;
    const unsigned i0 = blockIdx.y * TILE, j0 = blockIdx.x * TILE;
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
                if (i < rows && j < columns) cm[(i64)i * c_row + (i64)j * c_column] = sums[r][q];
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
