// Blocked elimination of batches of matrices. `#define`s before this text:
//   TILE     side of a tile of `update`
//   SIDE     side of a tile of a factor, and rows that `solve_columns` substitutes at once: 32
//   COLUMNS  right-hand sides of a block of `solve_columns`: 16
//   ABSENT   bits of a word of a factor before it is computed
//
// A matrix is an address and the distances of matrices, rows and columns in words, which may be negative. Every element
// has one chain of FMAs in the order of elimination: it starts from the input, a launch continues from what the launch
// before wrote, and a division comes last. Most kernels have 256 threads; blockIdx.z goes round the batch.

typedef unsigned long long u64;
typedef long long i64;

#define MATRIX(x) float* x, i64 x##_batch, i64 x##_row, i64 x##_column

constexpr unsigned DEPTH = 16;

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
// others wait for, then the tiles further down. It waits for words that others compute, who took their jobs before, so no order of blocks can
// hold them up. A word that is not there yet has the bits ABSENT, which no operation gives.
//
// Thread mapping of products: 16 by 8 threads have 2 by 4 neighbouring elements each. n^3 / 3 flops, and n^3 / 48 words read
// from cache.

constexpr unsigned PITCH = SIDE + 4;

// A tile in shared memory, its columns one after another.
typedef float (*Columns)[PITCH];

// The matrices of one element of the batch.
struct Factor {
    const float* a;
    float* l;
    i64 row, column;
    unsigned n;
};

// Loads a tile once all of it is there: zeros outside of the matrix. Neighbouring threads read neighbouring words, and write to different
// banks.
static __device__ __forceinline__ void load_tile(const Factor& f, unsigned i0, unsigned k0, Columns to) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool by_row = f.column == 1;
    const unsigned k = 8 * warp + (by_row ? lane % 8 : lane / 8 * 2), i = by_row ? lane / 8 : lane % 8;
    const float* from = f.l + (i64)(i0 + i) * f.row + (i64)(k0 + k) * f.column;
    const i64 odd = by_row ? 4 * f.row : f.column;
    unsigned v[8];
    for (;;) {
        bool all = true;
#pragma unroll
        for (unsigned r = 0; r < 8; ++r) {
            const unsigned di = r / 2 * 8 + (by_row ? r % 2 * 4 : 0), dk = by_row ? 0 : r % 2;
            const float* word = from + r / 2 * 8 * f.row + r % 2 * odd;
            v[r] = 0;
            if (i0 + i + di < f.n && k0 + k + dk < f.n) asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v[r]) : "l"(word) : "memory");
            all = all & (v[r] != ABSENT);
        }
        if (all) break;
        __nanosleep(20);
    }
#pragma unroll
    for (unsigned r = 0; r < 8; ++r) {
        const unsigned di = r / 2 * 8 + (by_row ? r % 2 * 4 : 0), dk = by_row ? 0 : r % 2;
        to[k + dk][i + di] = __uint_as_float(v[r]);
    }
}

// Writes a tile on or below the diagonal, and the zeros across it: from thread `first` of the block on.
template <unsigned first>
static __device__ __forceinline__ void store_tile(const Factor& f, unsigned i0, unsigned j0, Columns from) {
    const unsigned warp = (threadIdx.x - first) / 32, lane = threadIdx.x % 32;
    constexpr unsigned warps = (128 - first) / 32;
    const bool by_row = f.column == 1;
    float* to = f.l + (i64)i0 * f.row + (i64)j0 * f.column;
    for (unsigned e = warp; e < SIDE; e += warps) {
        const unsigned i = by_row ? e : lane, j = by_row ? lane : e;
        const float v = j0 + j <= i0 + i ? from[j][i] : 0.0f;
        if (i0 + i < f.n && j0 + j < f.n)
            asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to + i * f.row + j * f.column), "f"(v) : "memory");
    }
    if (i0 == j0) return;
    to = f.l + (i64)j0 * f.row + (i64)i0 * f.column;
    for (unsigned e = warp; e < SIDE; e += warps) {
        const unsigned i = by_row ? e : lane, j = by_row ? lane : e;
        if (j0 + i < f.n && i0 + j < f.n) to[i * f.row + j * f.column] = 0.0f;
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

// The symmetric part of a tile; outside of the matrix, that of the identity. Both halves are read by rows, the one across the diagonal through shared memory.
static __device__ __forceinline__ void symmetric_part(const Factor& f, unsigned i0, unsigned j0, Columns left, Columns above, Sums& sums) {
    const unsigned tx = threadIdx.x % 8, ty = threadIdx.x / 8;
#pragma unroll
    for (unsigned e = threadIdx.x; e < SIDE * SIDE; e += 128) {
        const unsigned i = e / SIDE, j = e % SIDE;
        const float outside = i0 + i == j0 + j ? 1.0f : 0.0f;
        left[i][j] = i0 + i < f.n && j0 + j < f.n ? f.a[(u64)(i0 + i) * f.n + j0 + j] : outside;
        above[i][j] = j0 + i < f.n && i0 + j < f.n ? f.a[(u64)(j0 + i) * f.n + i0 + j] : outside;
    }
    __syncthreads();
#pragma unroll
    for (unsigned r = 0; r < 2; ++r) {
#pragma unroll
        for (unsigned q = 0; q < 4; ++q) sums[r][q] = __fmul_rn(0.5f, __fadd_rn(left[2 * ty + r][4 * tx + q], above[4 * tx + q][2 * ty + r]));
    }
    __syncthreads();
}

// How far a number is from those for which a quick quotient is right. A dividend from 2^-100 to 2^100 in size and a divisor from 2^-26 to 2^26
// have normal quotients, and no remainder is rounded.
struct Oddity {
    unsigned dividend = 0, divisor = 0;
    static __device__ __forceinline__ unsigned above(float x, unsigned least) { return (__float_as_uint(x) & 0x7fffffffu) - least; }
    __device__ __forceinline__ void see_dividend(float a, bool matters) {
        dividend = max(dividend, (__float_as_uint(a) != 0) & matters ? above(a, 0x0d800000u) : 0);
    }
    __device__ __forceinline__ void see_divisor(float d) { divisor = max(divisor, above(d, 0x32800000u)); }
    // In any lane of the warp.
    __device__ __forceinline__ bool found() const {
        return __any_sync(0xffffffffu, (dividend > 0x64000000u) | (divisor > 0x1a000000u));
    }
};

// a / d, rounded correctly. A QUICK one does not look at special cases, and takes the reciprocal of d, rounded correctly, and one that is
// nearly so.
template <bool QUICK>
static __device__ __forceinline__ float quotient(float a, float d, float reciprocal, float nearly) {
    if (!QUICK) return __fdiv_rn(a, d);
    float q = __fmul_rn(a, nearly);
    q = __fmaf_rn(__fmaf_rn(-q, d, a), nearly, q);
    return __fmaf_rn(__fmaf_rn(-q, d, a), reciprocal, q);
}

// Factors a tile in place: a lane of a warp has a row. False, and nothing done, where a QUICK one cannot.
template <bool QUICK>
static __device__ __forceinline__ bool factor_rows(Columns s) {
    const unsigned lane = threadIdx.x;
    Oddity odd;
    float row[SIDE];
#pragma unroll
    for (unsigned k = 0; k < SIDE; ++k) row[k] = s[k][lane];
    // The diagonal apart: the next pivot needs nothing of other lanes.
    float diagonal = s[lane][lane];
#pragma unroll
    for (unsigned j = 0; j < SIDE; ++j) {
        const float d = __shfl_sync(0xffffffffu, diagonal, j);
        float pivot, nearly = 0.0f, reciprocal = 0.0f;
        if (QUICK) {
            asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(nearly) : "f"(d));
            pivot = __fmul_rn(d, nearly);
            pivot = __fmaf_rn(__fmaf_rn(-pivot, pivot, d), __fmul_rn(0.5f, nearly), pivot);
            reciprocal = __fmaf_rn(__fmaf_rn(-pivot, nearly, 1.0f), nearly, nearly);
            // This reciprocal is rounded correctly unless all bits of the pivot's fraction are ones.
            odd.see_divisor((__float_as_uint(pivot) & 0x7fffffu) == 0x7fffffu ? 0.0f : pivot);
            odd.see_dividend(row[j], lane > j);
        } else {
            pivot = d > 0.0f ? __fsqrt_rn(d) : __int_as_float(0x7fc00000);
        }
        const float x = quotient<QUICK>(row[j], pivot, reciprocal, nearly);
        row[j] = lane == j ? pivot : x;
        diagonal = __fmaf_rn(-row[j], row[j], diagonal);
#pragma unroll
        for (unsigned k = j + 1; k < SIDE; ++k) row[k] = __fmaf_rn(-row[j], __shfl_sync(0xffffffffu, row[j], k), row[k]);
    }
    if (QUICK && odd.found()) return false;
#pragma unroll
    for (unsigned k = 0; k < SIDE; ++k) {
        if (k <= lane) s[k][lane] = row[k];
    }
    return true;
}

// Solves x dᵀ = s in place for a tile: d is lower triangular, and a lane of a warp has a row. False, and nothing done, where a QUICK one
// cannot.
template <bool QUICK>
static __device__ __forceinline__ bool solve_rows(Columns s, Columns d) {
    const unsigned lane = threadIdx.x;
    float row[SIDE];
#pragma unroll
    for (unsigned k = 0; k < SIDE; ++k) row[k] = s[k][lane];
    const float own = QUICK ? d[lane][lane] : 0.0f, own_reciprocal = QUICK ? __frcp_rn(own) : 0.0f;
    Oddity odd;
    odd.see_divisor(own);
#pragma unroll
    for (unsigned j = 0; j < SIDE; ++j) {
        const float reciprocal = __shfl_sync(0xffffffffu, own_reciprocal, j);
        odd.see_dividend(row[j], true);
        row[j] = quotient<QUICK>(row[j], d[j][j], reciprocal, reciprocal);
#pragma unroll
        for (unsigned k = j + 1; k < SIDE; ++k) row[k] = __fmaf_rn(-row[j], d[j][k], row[k]);
    }
    if (QUICK && odd.found()) return false;
#pragma unroll
    for (unsigned k = 0; k < SIDE; ++k) s[k][lane] = row[k];
    return true;
}

static __device__ __noinline__ void factor_slowly(Columns s) { factor_rows<false>(s); }
static __device__ __noinline__ void solve_slowly(Columns s, Columns d) { solve_rows<false>(s, d); }

// Before `cholesky_tiles`: no job is taken, and no word is there.
extern "C" __global__ void __launch_bounds__(256)
cholesky_start(unsigned* __restrict__ l, u64 words, u64* __restrict__ taken) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *taken = 0;
    for (u64 i = blockIdx.x * 256ull + threadIdx.x; i < words; i += gridDim.x * 256ull) l[i] = ABSENT;
}

extern "C" __global__ void __launch_bounds__(128)
cholesky_tiles(const float* __restrict__ a, MATRIX(l), unsigned n, u64 batch, u64* jobs_taken) {
    __shared__ __align__(16) float left[SIDE][PITCH], above[SIDE][PITCH];
    __shared__ u64 taken;
    const unsigned t = threadIdx.x, tiles = (n + SIDE - 1) / SIDE;
    // The column of the job that was taken last, and the number of its first job.
    unsigned column = 0;
    u64 start = 0;
    const auto jobs = [&] { return (tiles - column > 2 ? tiles - column - 1 : 1) * batch; };
    for (;;) {
        __syncthreads();
        if (t == 0) taken = atomicAdd(jobs_taken, 1ull);
        __syncthreads();
        const u64 number = taken;
        while (column < tiles && number >= start + jobs()) {
            start += jobs();
            ++column;
        }
        if (column == tiles) return;
        const u64 b = (number - start) % batch;
        const unsigned job = (unsigned)((number - start) / batch), k0 = column * SIDE;
        const Factor f = {a + b * n * n, l + (i64)b * l_batch, l_row, l_column, n};
        // The job's row of tiles, and the tile of it that is solved.
        const unsigned row = job > 0 ? column + 1 + job : column, solved = job > 0 || column == 0 ? column : column - 1;
        Sums sums, diagonal;
        symmetric_part(f, row * SIDE, solved * SIDE, left, above, sums);
        if (job == 0) symmetric_part(f, k0, k0, left, above, diagonal);
        for (unsigned k = 0; k < solved; ++k) {
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
            load_tile(f, solved * SIDE, solved * SIDE, above);
            __syncthreads();
            if (t < 32) {
                if (!solve_rows<true>(left, above)) solve_slowly(left, above);
            }
            __syncthreads();
            if (job == 0) subtract_products(left, left, diagonal);
        }
        if (job == 0) {
            keep(diagonal, above);
            __syncthreads();
            if (t < 32) {
                if (!factor_rows<true>(above)) factor_slowly(above);
            } else if (row != solved) {
                store_tile<32>(f, row * SIDE, solved * SIDE, left);
            }
            __syncthreads();
            store_tile<0>(f, k0, k0, above);
        } else {
            store_tile<0>(f, row * SIDE, solved * SIDE, left);
        }
    }
}

// Solves a x = b in place, for a few n rows of x with m columns; a is lower triangular.
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

// Solves a x = b in place, for n rows of x with m columns; a is lower triangular. A block has COLUMNS columns, which nothing else depends on, and goes
// over the rows 256 at a time: it subtracts the products of the rows above, then substitutes 32 rows and subtracts their products from
// those below, eight times.
//
// Thread mapping: four warps compute, 32 by 4 threads; a thread has 8 rows, 32 apart, and 4 neighbouring columns. One of them substitutes, a
// column per lane. Four others copy tiles of a and x to shared memory, `STAGES` under way, 256 rows of 32 terms each. n^2 m flops, and
// n^2 m / 32 words read from cache.

constexpr unsigned PARTS = 8;
constexpr unsigned STAGES = 3;

struct Stage {
    float a[PARTS * SIDE][PITCH];
    float x[SIDE][COLUMNS + 4];
};

static __device__ __forceinline__ void copy_word(float* to, const float* from, bool there) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(there ? 4 : 0) : "memory");
}

// Substitutes 32 rows: `d` has the columns of the block on the diagonal. False, and nothing done, where a QUICK one cannot.
template <bool QUICK>
static __device__ __forceinline__ bool substitute(Columns d, float (*x)[COLUMNS + 4], bool unit) {
    const unsigned lane = threadIdx.x, column = lane % COLUMNS;
    float v[SIDE];
#pragma unroll
    for (unsigned i = 0; i < SIDE; ++i) v[i] = x[i][column];
    const float own = QUICK && !unit ? d[lane][lane] : 1.0f, own_reciprocal = QUICK ? __frcp_rn(own) : 0.0f;
    Oddity odd;
    odd.see_divisor(own);
#pragma unroll
    for (unsigned k = 0; k < SIDE; ++k) {
        const float reciprocal = __shfl_sync(0xffffffffu, own_reciprocal, k);
        odd.see_dividend(v[k], !unit);
        const float q = quotient<QUICK>(v[k], d[k][k], reciprocal, reciprocal);
        if (!unit) v[k] = q;
#pragma unroll
        for (unsigned i = k + 1; i < SIDE; ++i) v[i] = __fmaf_rn(-d[k][i], v[k], v[i]);
    }
    if (QUICK && odd.found()) return false;
#pragma unroll
    for (unsigned i = 0; i < SIDE; ++i) x[i][column] = v[i];
    return true;
}

static __device__ __noinline__ void substitute_slowly(Columns d, float (*x)[COLUMNS + 4], bool unit) { substitute<false>(d, x, unit); }

// Subtracts the products of 32 rows of x from the parts `first` to `end` of a panel.
template <bool ALL>
static __device__ __forceinline__ void subtract_rows(const Stage& s, float (&sums)[PARTS][4], unsigned first, unsigned end) {
    const unsigned tx = threadIdx.x % 4, ty = threadIdx.x / 4;
#pragma unroll 2
    for (unsigned k = 0; k < SIDE; k += 4) {
        float4 x[4];
#pragma unroll
        for (unsigned q = 0; q < 4; ++q) x[q] = *reinterpret_cast<const float4*>(&s.x[k + q][4 * tx]);
#pragma unroll
        for (unsigned r = 0; r < PARTS; ++r) {
            if (!ALL && (r < first || r >= end)) continue;
            const float4 v = *reinterpret_cast<const float4*>(&s.a[SIDE * r + ty][k]);
            const float a[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (unsigned q = 0; q < 4; ++q) {
                sums[r][0] = __fmaf_rn(-a[q], x[q].x, sums[r][0]);
                sums[r][1] = __fmaf_rn(-a[q], x[q].y, sums[r][1]);
                sums[r][2] = __fmaf_rn(-a[q], x[q].z, sums[r][2]);
                sums[r][3] = __fmaf_rn(-a[q], x[q].w, sums[r][3]);
            }
        }
    }
}

// A barrier of the threads that compute.
static __device__ __forceinline__ void compute_barrier() { asm volatile("bar.sync 1, 128;" ::: "memory"); }

extern "C" __global__ void __launch_bounds__(256)
solve_columns(MATRIX(a), MATRIX(x), unsigned n, u64 m, u64 batch, int unit) {
    extern __shared__ __align__(16) char shared[];
    Stage* stages = reinterpret_cast<Stage*>(shared);
    __shared__ __align__(16) float diagonal[SIDE][PITCH];
    const bool computes = threadIdx.x < 128;
    const unsigned t = threadIdx.x % 128, lane = t % 32, warp = t / 32, tx = t % 4, ty = t / 4;
    const u64 first = (u64)blockIdx.x * COLUMNS;
    const unsigned width = m - first < COLUMNS ? (unsigned)(m - first) : COLUMNS;
    const bool by_column = size_of(x_column) == 1, a_by_column = size_of(a_column) == 1;
    for (u64 b = blockIdx.z; b < batch; b += gridDim.z) {
        const float* am = a + (i64)b * a_batch;
        float* xm = x + (i64)b * x_batch + (i64)first * x_column;
        for (unsigned i0 = 0; i0 < n; i0 += PARTS * SIDE) {
            const unsigned rows = n - i0 < PARTS * SIDE ? n - i0 : PARTS * SIDE, parts = (rows + SIDE - 1) / SIDE;
            const unsigned steps = i0 / SIDE + parts;
            float sums[PARTS][4];
            if (computes) {
#pragma unroll
                for (unsigned r = 0; r < PARTS; ++r) {
#pragma unroll
                    for (unsigned q = 0; q < 4; ++q) {
                        const unsigned i = SIDE * r + ty, j = 4 * tx + q;
                        sums[r][q] = i < rows && j < width ? xm[(i64)(i0 + i) * x_row + (i64)j * x_column] : 0.0f;
                    }
                }
            }
            // Copies begin for terms of one step. A warp reads 128 bytes of a row, or 32 bytes of four columns.
            const unsigned own_i = a_by_column ? warp : lane % 8, own_k = a_by_column ? lane : 4 * warp + lane / 8;
            const unsigned odd_i = a_by_column ? 4 : 0, odd_k = a_by_column ? 0 : 16;
            const float* own = am + (i64)(i0 + own_i) * a_row + (i64)own_k * a_column;
            const i64 odd = odd_i * a_row + odd_k * a_column;
            const auto fetch = [&](unsigned step) {
                if (step < steps) {
                    Stage& s = stages[step % STAGES];
                    const unsigned k0 = step * SIDE, begin = k0 < i0 ? 0 : k0 - i0;
                    const float* from = own + (i64)k0 * a_column + (i64)begin * a_row;
#pragma unroll 4
                    for (unsigned i = begin + own_i; i < parts * SIDE; i += 8, from += 8 * a_row) {
                        const bool there = i < rows && k0 + own_k <= i0 + i, odd_there = i + odd_i < rows && k0 + own_k + odd_k <= i0 + i + odd_i;
                        copy_word(&s.a[i][own_k], there ? from : am, there);
                        copy_word(&s.a[i + odd_i][own_k + odd_k], odd_there ? from + odd : am, odd_there);
                    }
                    if (k0 < i0) {
#pragma unroll
                        for (unsigned e = t; e < SIDE * COLUMNS; e += 128) {
                            const unsigned k = by_column ? e / COLUMNS : e % SIDE, j = by_column ? e % COLUMNS : e / SIDE;
                            copy_word(&s.x[k][j], j < width ? xm + (i64)(k0 + k) * x_row + (i64)j * x_column : xm, j < width);
                        }
                    }
                }
                asm volatile("cp.async.commit_group;" ::: "memory");
            };
            if (!computes) {
#pragma unroll
                for (unsigned step = 0; step + 1 < STAGES; ++step) fetch(step);
            }
            for (unsigned step = 0; step < steps; ++step) {
                if (!computes) asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
                __syncthreads();
                Stage& s = stages[step % STAGES];
                if (!computes) {
                    fetch(step + STAGES - 1);
                } else if (step * SIDE < i0) {
                    if (parts == PARTS) {
                        subtract_rows<true>(s, sums, 0, PARTS);
                    } else {
                        subtract_rows<false>(s, sums, 0, parts);
                    }
                } else {
                    const unsigned part = step - i0 / SIDE;
#pragma unroll
                    for (unsigned r = 0; r < PARTS; ++r) {
                        if (r == part) *reinterpret_cast<float4*>(&s.x[ty][4 * tx]) = make_float4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
                    }
#pragma unroll
                    for (unsigned e = warp; e < SIDE; e += 4) diagonal[lane][e] = s.a[SIDE * part + e][lane];
                    compute_barrier();
                    if (t < 32) {
                        if (!substitute<true>(diagonal, s.x, unit)) substitute_slowly(diagonal, s.x, unit);
                    }
                    compute_barrier();
#pragma unroll
                    for (unsigned e = t; e < SIDE * COLUMNS; e += 128) {
                        const unsigned k = by_column ? e / COLUMNS : e % SIDE, j = by_column ? e % COLUMNS : e / SIDE;
                        const unsigned i = SIDE * part + k;
                        if (i < rows && j < width) xm[(i64)(i0 + i) * x_row + (i64)j * x_column] = s.x[k][j];
                    }
                    subtract_rows<false>(s, sums, part + 1, parts);
                }
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
