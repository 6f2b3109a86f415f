// Products in digits, out[z] = A[z] * B[z] (+ bias), row-major: modes `fast` and `turbo`, the same bits as the CPU.
//
// A row of A, and a column of B, is scaled by a power of two and rounded to integers of DITTO_D digits of 8 bits. Tensor cores
// multiply digits and add in integers, which is exact: tiles and splits of k do not change a bit. Three kernels follow each other:
//   ditto_digits_maxima   the largest magnitude of rows whose terms are not contiguous, for each part of k
//   ditto_digits          the digits and exponents of both operands
//   ditto_digits_product  the product; with splits of k, its exact sums, which ditto_digits_reduce adds and finishes
//
// This text is compiled at run time behind a few `#define` lines that pick one variant:
//   DITTO_PART        0: the kernels that make digits; 1: the product; 2: the sum over splits
//   DITTO_D           digits of a number: 3 in `fast`, 2 in `turbo`
//   DIGIT_CHUNK       terms of k that share a scale and an exact sum, the contract's
//   LEAST_EXPONENT    of a row, the contract's
//   DITTO_TA, _TB     1: A is stored (k, m); 1: B is stored (n, k)
//   DITTO_VA, _VB     1: 16-byte loads of A, of B: aligned, the contiguous axis a multiple of 4 long
//   DITTO_WARPS       warps that share a row whose terms are contiguous: 1 or 8
//   DITTO_VC          1: 8-byte stores: out aligned, n even
//   DITTO_BIAS        1: bias[j] is added once, after everything else
//   DITTO_SPLIT       1: the product writes its sums, for ditto_digits_reduce
//   DITTO_HOPPER      1: `wgmma`, which compute capability 9.0 has; 0: `mma.sync`
//
// Digits lie as shared memory holds them, so that a copy is one range: [product][block][digit][pitch][KB] bytes. A block is KB
// steps of k, filled up with zeros. `pitch` is the number of rows, rounded up to 8. In row r, group g of 16 bytes is at place
// g ^ (r >> 1 & 3), so that tensor cores meet all banks. Exponents are [product][chunk][pitch]; NOT_FINITE marks a row that
// holds an infinity or a NaN, whose results are NaN.

constexpr int CHUNK_BLOCKS = DIGIT_CHUNK / KB;

#if DITTO_PART == 0

// One operand: `rows` rows of k terms, in `count` products.
struct Operand {
    const float* x;
    i64 stride;        // floats from one product's operand to the next one's
    i64 rows, k;
    i64 pitch, blocks, chunks;
    unsigned* maxima;  // [product][part][rows], if terms are not contiguous
    i64 parts;         // of a chunk
    int* exponents;
    unsigned char* digits;

    __device__ __forceinline__ unsigned char* place(i64 item, i64 block, int digit, i64 row) const {
        return digits + (((item * blocks + block) * D + digit) * pitch + row) * KB;
    }
};

// Terms of a row are contiguous: a warp has a row of a chunk, or if they are many, DITTO_WARPS warps have.
template <int VECTOR> __device__ void digits_of_row(const Operand& o, i64 index, unsigned* shared) {
    constexpr int KEPT = 8, WARPS = DITTO_WARPS;  // groups of four terms that a lane keeps from one pass to the next
    constexpr int ROWS = 8 / WARPS, STEP = 32 * WARPS;
    const int lane = threadIdx.x % STEP;
    const i64 each = (o.pitch + ROWS - 1) / ROWS, group = index % each, rest = index / each;
    const i64 row = group * ROWS + threadIdx.x / STEP, chunk = rest % o.chunks, item = rest / o.chunks;
    const i64 first = chunk * DIGIT_CHUNK, length = min((i64)DIGIT_CHUNK, o.k - first);
    const bool in = row < o.rows;
    const float* line = o.x + item * o.stride + row * o.k + first;
    const i64 terms = in ? length : 0;
    Quad kept[KEPT];
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < KEPT; ++i) kept[i] = quad<VECTOR>(line, (i * STEP + lane) * 4, terms);
#pragma unroll
    for (int i = 0; i < KEPT; ++i) largest = larger(largest, kept[i]);
    for (i64 at = (KEPT * STEP + lane) * 4; at < terms; at += 4 * STEP) largest = larger(largest, quad<VECTOR>(line, at, terms));
    largest = __reduce_max_sync(~0u, largest);
    if (WARPS > 1) {
        shared[threadIdx.x / 32] = largest;
        __syncthreads();
        largest = __reduce_max_sync(~0u, shared[threadIdx.x % 8]);
    }
    const int e = exponent_of(largest);
    if (lane == 0 && row < o.pitch) o.exponents[(item * o.chunks + chunk) * o.pitch + row] = e;
    const float scale = scale_of(e);
    // Each warp has two blocks at a time.
    const i64 from = chunk * CHUNK_BLOCKS, blocks = min((i64)CHUNK_BLOCKS, o.blocks - from);
    auto put = [&](i64 at, const Quad& x) {
        const i64 block = at / 16;
        if (block >= blocks || row >= o.pitch) return;
        unsigned digits[D];
        split(x, scale, digits);
#pragma unroll
        for (int d = 0; d < D; ++d) *(unsigned*)(o.place(item, from + block, d, row) + word_at(row, lane % 16)) = digits[d];
    };
#pragma unroll
    for (int i = 0; i < KEPT; ++i) put(i * STEP + lane, kept[i]);
    for (i64 at = KEPT * STEP + lane; at < blocks * 16; at += STEP) put(at, quad<VECTOR>(line, at * 4, terms));
}

// Terms of a row are `rows` floats apart: a block of threads has 32 rows and SPAN terms, and turns 128 at a time in shared memory.
constexpr int SPAN = 512;
template <int VECTOR>
__device__ void digits_of_columns(const Operand& o, i64 index, unsigned (&turned)[D][32][33], unsigned (&shared)[8][32]) {
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const i64 each = (o.pitch + 31) / 32, spans = (o.blocks * KB + SPAN - 1) / SPAN;
    const i64 row0 = index % each * 32, span = index / each % spans, item = index / each / spans;
    const i64 chunk = span * SPAN / DIGIT_CHUNK;
    // Four rows and four terms of each.
    const i64 row = row0 + t % 8 * 4;
    const float* lines = o.x + item * o.stride;
    auto load = [&](i64 from, Quad (&x)[4]) {
        const i64 term = from + t / 8 * 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = term + i < o.k ? quad<VECTOR>(lines + (term + i) * o.rows, row, o.rows) : Quad{};
    };
    Quad x[4], next[4];
    load(span * SPAN, x);
    const unsigned* maxima = o.maxima + (item * o.chunks + chunk) * o.parts * o.rows;
    unsigned largest = 0;
    if (row0 + lane < o.rows)
        for (i64 p = warp; p < o.parts; p += 8) largest = max(largest, maxima[p * o.rows + row0 + lane]);
    shared[warp][lane] = largest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < 8; ++w) largest = max(largest, shared[w][lane]);
    const int e = exponent_of(largest);
    if (span * SPAN % DIGIT_CHUNK == 0 && warp == 0 && row0 + lane < o.pitch)
        o.exponents[(item * o.chunks + chunk) * o.pitch + row0 + lane] = e;
    float scale[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) scale[i] = scale_of(__shfl_sync(~0u, e, t % 8 * 4 + i));
    const i64 end = min((span + 1) * SPAN, o.blocks * KB);
    for (i64 from = span * SPAN; from < end; from += 128) {
        if (from + 128 < end) load(from + 128, next);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            unsigned digits[D];
            split(Quad{x[0].v[i], x[1].v[i], x[2].v[i], x[3].v[i]}, scale[i], digits);
#pragma unroll
            for (int d = 0; d < D; ++d) turned[d][t % 8 * 4 + i][t / 8] = digits[d];
        }
        __syncthreads();
        const i64 block = from / KB + lane / 16;
        for (int line = warp; line < 32 * D; line += 8) {
            const int d = line / 32, r = line % 32;
            if (row0 + r < o.pitch && block < o.blocks)
                *(unsigned*)(o.place(item, block, d, row0 + r) + word_at(row0 + r, lane % 16)) = turned[d][r][lane];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = next[i];
    }
}

// A block of threads has 32 rows and a part of a chunk.
template <int VECTOR> __device__ void maxima_of_columns(const Operand& o, i64 index, unsigned (&shared)[32][33]) {
    const int t = threadIdx.x;
    const i64 each = (o.rows + 31) / 32, row = index % each * 32 + t % 8 * 4;
    const i64 part = index / each % o.parts, rest = index / each / o.parts, chunk = rest % o.chunks, item = rest / o.chunks;
    const i64 first = chunk * DIGIT_CHUNK, length = min((i64)DIGIT_CHUNK, o.k - first);
    const i64 end = first + length * (part + 1) / o.parts;
    const float* lines = o.x + item * o.stride;
    unsigned largest[4] = {0, 0, 0, 0};
#pragma unroll 8
    for (i64 term = first + length * part / o.parts + t / 8; term < end; term += 32) {
        const Quad x = quad<VECTOR>(lines + term * o.rows, row, o.rows);
#pragma unroll
        for (int i = 0; i < 4; ++i) largest[i] = max(largest[i], magnitude(x.v[i]));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) shared[t % 8 * 4 + i][t / 8] = largest[i];
    __syncthreads();
    for (int r = t / 32; r < 32; r += 8) {
        const unsigned all = __reduce_max_sync(~0u, shared[r][t % 32]);
        const i64 at = index % each * 32 + r;
        if (t % 32 == 0 && at < o.rows) o.maxima[((item * o.chunks + chunk) * o.parts + part) * o.rows + at] = all;
    }
}

// `first`: blocks of threads for A; those after are for B. So it is in both kernels.
extern "C" __global__ void __launch_bounds__(256)
ditto_digits_maxima(const __grid_constant__ Operand a, const __grid_constant__ Operand b, i64 first) {
    __shared__ unsigned shared[32][33];
    const i64 index = blockIdx.x;
    if (DITTO_TA && index < first) maxima_of_columns<DITTO_VA>(a, index, shared);
    if (!DITTO_TB && index >= first) maxima_of_columns<DITTO_VB>(b, index - first, shared);
}

extern "C" __global__ void __launch_bounds__(256)
ditto_digits(const __grid_constant__ Operand a, const __grid_constant__ Operand b, i64 first) {
    __shared__ unsigned turned[D][32][33], shared[8][32];
    const i64 index = blockIdx.x;
    if (index < first) {
        if (DITTO_TA) digits_of_columns<DITTO_VA>(a, index, turned, shared);
        else digits_of_row<DITTO_VA>(a, index, shared[0]);
    } else {
        if (DITTO_TB) digits_of_row<DITTO_VB>(b, index - first, shared[0]);
        else digits_of_columns<DITTO_VB>(b, index - first, turned, shared);
    }
}

#else

struct Result {
    float* out;
    const float* bias;
    i64 m, n;
#if DITTO_EPILOGUE
    const Epilogue* epilogue;
#endif

    // Ends one or two neighbouring results of the row: `first` and `last` chunk of k.
    template <int W> __device__ __forceinline__ void put(Vec<W> v, i64 item, i64 row, i64 column, bool first, bool last) const {
        const i64 at = (item * m + row) * n + column;
        if (!first) {
            const Vec<W> old = *(const Vec<W>*)(out + at);
#pragma unroll
            for (int i = 0; i < W; ++i) v.v[i] = __fadd_rn(old.v[i], v.v[i]);
        }
        if (last) {
            if (DITTO_BIAS) {
#pragma unroll
                for (int i = 0; i < W; ++i) v.v[i] = __fadd_rn(v.v[i], bias[column + i]);
            }
#if DITTO_EPILOGUE
            Extras<W> extras;
            extras.load(*epilogue, at, column);
            extras.finish(*epilogue, v, at);
#endif
        }
        *(Vec<W>*)(out + at) = v;
    }
};

#if DITTO_EPILOGUE
#define RESULT(out, bias, m, n) Result{out, bias, m, n, &epilogue_with}
#else
#define RESULT(out, bias, m, n) Result{out, bias, m, n}
#endif

#if DITTO_PART == 2

// The result of a chunk, in a row and a column of these exponents.
__device__ __forceinline__ float finished(i64 total, int ea, int eb) {
    const int e = ea + eb - 2 * (8 * D - 1) + (D == 3 ? 8 : 0), half = e >> 1;
    if (e > NOT_FINITE / 2) return __int_as_float(0x7fc00000);
    return __fmul_rn(__fmul_rn(rounded(total), power(half)), power(e - half));
}

// Adds the sums of all splits, [split][product][m][n], and finishes them. There is one chunk. A thread has W neighbouring results.
extern "C" __global__ void __launch_bounds__(256)
ditto_digits_reduce(const i64* __restrict__ sums, const int* __restrict__ ea, const int* __restrict__ eb, float* out,
                    const float* __restrict__ bias, i64 m, i64 n, i64 pitch_a, i64 pitch_b, i64 batch, i64 splits EPILOGUE_PARAM) {
    constexpr int W = DITTO_VC ? 2 : 1;
    const Result result = RESULT(out, bias, m, n);
    const i64 all = batch * m * n;
    for (i64 at = ((i64)blockIdx.x * 256 + threadIdx.x) * W; at < all; at += (i64)gridDim.x * 256 * W) {
        const i64 column = at % n, row = at / n % m, item = at / n / m;
        i64 total[W] = {};
        for (i64 s = 0; s < splits; ++s) {
            if (W == 2) {
                const longlong2 v = *(const longlong2*)(sums + s * all + at);
                total[0] += v.x;
                total[W - 1] += v.y;
            } else {
                total[0] += sums[s * all + at];
            }
        }
        const int e = ea[item * pitch_a + row];
        Vec<W> v;
#pragma unroll
        for (int i = 0; i < W; ++i) v.v[i] = finished(total[i], e, eb[item * pitch_b + column + i]);
        result.put<W>(v, item, row, column, true, true);
    }
}

#else

struct Product {
    const unsigned char *a, *b;  // digits
    const int *ea, *eb;
    i64 m, n, blocks, chunks, pitch_a, pitch_b, batch, splits;
    i64* sums;  // with DITTO_SPLIT

    // Two neighbouring sums of a row: of a chunk, or of a split of the only one.
    __device__ __forceinline__ void put(const Result& result, i64 t0, i64 t1, i64 item, i64 row, i64 column, const RowScale& scale,
                                        const float* columns, i64 chunk, i64 split) const {
        if (DITTO_SPLIT) {
            i64* to = sums + ((split * batch + item) * m + row) * n + column;
            if (DITTO_VC) {
                *(longlong2*)to = make_longlong2(t0, t1);
            } else {
                to[0] = t0;
                if (column + 1 < n) to[1] = t1;
            }
            return;
        }
        const bool first = chunk == 0, last = chunk + 1 == chunks;
        const float x = scale.finished(t0, columns[0]), y = scale.finished(t1, columns[1]);
        if (DITTO_VC) {
            result.put<2>(Vec<2>{x, y}, item, row, column, first, last);
        } else {
            result.put<1>(Vec<1>{x}, item, row, column, first, last);
            if (column + 1 < n) result.put<1>(Vec<1>{y}, item, row, column + 1, first, last);
        }
    }

    // The sums of a warp's 16 rows from `row` on, of which this lane has rows lane / 4 and 8 more, and of N / 4 groups of 8 columns from
    // `column` on columns lane % 4 * 2 and one more. `columns`: the scales of columns from `column` on.
    template <int N> __device__ __forceinline__ void end(const Result& result, const int (&s)[WEIGHTS][N], i64 item, i64 row,
                                                         i64 column, const float* columns, i64 chunk, i64 split) const {
        const int lane = threadIdx.x % 32;
        const int* const row_e = ea + (item * chunks + chunk) * pitch_a;
        row += lane / 4;
        column += lane % 4 * 2;
        columns += lane % 4 * 2;
        const RowScale scale[2] = {RowScale(row < m ? row_e[row] : 0), RowScale(row + 8 < m ? row_e[row + 8] : 0)};
        const int left = (int)min(n - column, (i64)(2 * N));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (row + h * 8 >= m) continue;
#pragma unroll
            for (int g = 0; g < N / 4; ++g)
                if (g * 8 < left)
                    put(result, total(s, g * 4 + h * 2), total(s, g * 4 + h * 2 + 1), item, row + h * 8, column + g * 8, scale[h],
                        columns + g * 8, chunk, split);
        }
    }

    // The scale of a column, for `end`.
    __device__ __forceinline__ float column_scale(i64 item, i64 column, i64 chunk) const {
        const int e = column < n ? eb[(item * chunks + chunk) * pitch_b + column] : 0;
        return e == NOT_FINITE ? __int_as_float(0x7fc00000) : power(e - (8 * D - 1));
    }
};

// A piece of work: a tile of a product, and the blocks of k that it sums. Tiles are walked in groups of rows, so that those that
// run at the same time share operands.
template <int BM, int BN> struct Work {
    i64 item, row, column, split, from, to;

    // There are fewer than 2^31 pieces.
    static __device__ __forceinline__ unsigned count(const Product& p) {
        return (unsigned)(((p.m + BM - 1) / BM) * ((p.n + BN - 1) / BN) * p.batch * p.splits);
    }
    __device__ __forceinline__ Work(const Product& p, unsigned index) {
        constexpr unsigned GROUP = 16;
        const unsigned down = (unsigned)((p.m + BM - 1) / BM), across = (unsigned)((p.n + BN - 1) / BN), splits = (unsigned)p.splits;
        const unsigned of = index / splits, tile = of % (down * across);
        split = index % splits;
        item = of / (down * across);
        const unsigned group = tile / (GROUP * across), rest = tile % (GROUP * across), height = min(GROUP, down - group * GROUP);
        row = (i64)(group * GROUP + rest % height) * BM;
        column = (i64)(rest / height) * BN;
        from = p.blocks * split / p.splits;
        to = p.blocks * (split + 1) / p.splits;
    }
};

#if DITTO_HOPPER

constexpr int BM = 128, BN = D == 2 ? 128 : 96, CONSUMERS = BM / 64;
constexpr int SIZE_A = D * BM * KB, STAGE = SIZE_A + D * BN * KB;
constexpr int STAGES = D == 2 ? 6 : 5;

#if DITTO_D == 2
// s = a b, + s if `keep`, for 64 rows, 128 columns and 32 steps of k.
__device__ __forceinline__ void multiply(int (&s)[64], u64 a, u64 b, int keep) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0;"
                 "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, %64, %65, p;}"
                 : "+r"(s[0]), "+r"(s[1]), "+r"(s[2]), "+r"(s[3]), "+r"(s[4]), "+r"(s[5]), "+r"(s[6]), "+r"(s[7]),
                   "+r"(s[8]), "+r"(s[9]), "+r"(s[10]), "+r"(s[11]), "+r"(s[12]), "+r"(s[13]), "+r"(s[14]), "+r"(s[15]),
                   "+r"(s[16]), "+r"(s[17]), "+r"(s[18]), "+r"(s[19]), "+r"(s[20]), "+r"(s[21]), "+r"(s[22]), "+r"(s[23]),
                   "+r"(s[24]), "+r"(s[25]), "+r"(s[26]), "+r"(s[27]), "+r"(s[28]), "+r"(s[29]), "+r"(s[30]), "+r"(s[31]),
                   "+r"(s[32]), "+r"(s[33]), "+r"(s[34]), "+r"(s[35]), "+r"(s[36]), "+r"(s[37]), "+r"(s[38]), "+r"(s[39]),
                   "+r"(s[40]), "+r"(s[41]), "+r"(s[42]), "+r"(s[43]), "+r"(s[44]), "+r"(s[45]), "+r"(s[46]), "+r"(s[47]),
                   "+r"(s[48]), "+r"(s[49]), "+r"(s[50]), "+r"(s[51]), "+r"(s[52]), "+r"(s[53]), "+r"(s[54]), "+r"(s[55]),
                   "+r"(s[56]), "+r"(s[57]), "+r"(s[58]), "+r"(s[59]), "+r"(s[60]), "+r"(s[61]), "+r"(s[62]), "+r"(s[63])
                 : "l"(a), "l"(b), "r"(keep));
}
#else
// s = a b, + s if `keep`, for 64 rows, 96 columns and 32 steps of k.
__device__ __forceinline__ void multiply(int (&s)[48], u64 a, u64 b, int keep) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %50, 0;"
                 "wgmma.mma_async.sync.aligned.m64n96k32.s32.s8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
                 "}, %48, %49, p;}"
                 : "+r"(s[0]), "+r"(s[1]), "+r"(s[2]), "+r"(s[3]), "+r"(s[4]), "+r"(s[5]), "+r"(s[6]), "+r"(s[7]),
                   "+r"(s[8]), "+r"(s[9]), "+r"(s[10]), "+r"(s[11]), "+r"(s[12]), "+r"(s[13]), "+r"(s[14]), "+r"(s[15]),
                   "+r"(s[16]), "+r"(s[17]), "+r"(s[18]), "+r"(s[19]), "+r"(s[20]), "+r"(s[21]), "+r"(s[22]), "+r"(s[23]),
                   "+r"(s[24]), "+r"(s[25]), "+r"(s[26]), "+r"(s[27]), "+r"(s[28]), "+r"(s[29]), "+r"(s[30]), "+r"(s[31]),
                   "+r"(s[32]), "+r"(s[33]), "+r"(s[34]), "+r"(s[35]), "+r"(s[36]), "+r"(s[37]), "+r"(s[38]), "+r"(s[39]),
                   "+r"(s[40]), "+r"(s[41]), "+r"(s[42]), "+r"(s[43]), "+r"(s[44]), "+r"(s[45]), "+r"(s[46]), "+r"(s[47])
                 : "l"(a), "l"(b), "r"(keep));
}
#endif

// How tensor cores find a tile in shared memory: rows of 64 bytes, groups of 8 rows 512 bytes apart, 64-byte swizzle.
__device__ __forceinline__ u64 tile_at(const unsigned char* p) {
    return (u64)((shared_address(p) & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(512 >> 4) << 32 | (u64)2 << 62;
}

__device__ __forceinline__ void barrier_wait(u64* barrier, int phase) {
    asm volatile("{.reg .pred p; wait: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra wait;}"
                 ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void copy(unsigned char* to, const unsigned char* from, int bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

// Thread mapping: warp group 0 copies digits into a ring of STAGES blocks, the others multiply 64 rows each. A block of threads takes
// one piece of work after the other, so that the copies for the next one go on while results are written.
extern "C" __global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
ditto_digits_product(const __grid_constant__ Product p, float* out, const float* __restrict__ bias EPILOGUE_PARAM) {
    extern __shared__ unsigned char raw[];
    __shared__ u64 full[STAGES], empty[STAGES];
    unsigned char* const ring = raw + (1024 - shared_address(raw) % 1024) % 1024;
    __shared__ float columns[CONSUMERS][BN];
    const Result result = RESULT(out, bias, p.m, p.n);
    typedef Work<BM, BN> Tile;
    const unsigned count = Tile::count(p);
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(full + s)));
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(empty + s)), "r"(CONSUMERS));
        }
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncthreads();
    int stage = 0;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x > 0) return;
        int phase = 1;
        for (unsigned index = blockIdx.x; index < count; index += gridDim.x) {
            const Tile w(p, index);
            const int bytes_a = (int)min((i64)BM, p.pitch_a - w.row) * KB, bytes_b = (int)min((i64)BN, p.pitch_b - w.column) * KB;
            const unsigned char* a = p.a + ((w.item * p.blocks + w.from) * D * p.pitch_a + w.row) * KB;
            const unsigned char* b = p.b + ((w.item * p.blocks + w.from) * D * p.pitch_b + w.column) * KB;
            for (i64 block = w.from; block < w.to; ++block) {
                barrier_wait(empty + stage, phase);
                asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                             ::"r"(shared_address(full + stage)), "r"(D * (bytes_a + bytes_b)) : "memory");
                unsigned char* const to = ring + stage * STAGE;
#pragma unroll
                for (int d = 0; d < D; ++d) {
                    copy(to + d * BM * KB, a, bytes_a, full + stage);
                    copy(to + SIZE_A + d * BN * KB, b, bytes_b, full + stage);
                    a += p.pitch_a * KB;
                    b += p.pitch_b * KB;
                }
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int mine = group - 1, thread = threadIdx.x % 128;
        int phase = 0, sums[WEIGHTS][BN / 2];
        for (unsigned index = blockIdx.x; index < count; index += gridDim.x) {
            const Tile w(p, index);
            for (i64 block = w.from; block < w.to;) {
                const i64 chunk = block / CHUNK_BLOCKS, end = min(w.to, (chunk + 1) * CHUNK_BLOCKS);
                if (!DITTO_SPLIT) {
                    // All threads of the group have read those before.
                    asm volatile("barrier.sync %0, 128;" ::"r"(group) : "memory");
                    if (thread < BN) columns[mine][thread] = p.column_scale(w.item, w.column + thread, chunk);
                    asm volatile("barrier.sync %0, 128;" ::"r"(group) : "memory");
                }
                int keep = 0, last = -1;
                for (; block < end; ++block) {
                    barrier_wait(full + stage, phase);
                    const u64 a = tile_at(ring + stage * STAGE + mine * 64 * KB), b = tile_at(ring + stage * STAGE + SIZE_A);
                    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                    for (int step = 0; step < KB / 32; ++step) {
                        int before = -1;
                        all_pairs([&](int i, int j, int weight) {
                            const u64 at_a = a + i * (BM * KB / 16) + step * 2, at_b = b + j * (BN * KB / 16) + step * 2;
                            multiply(sums[weight], at_a, at_b, step > 0 || weight == before ? 1 : keep);
                            before = weight;
                        });
                    }
                    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                    if (last >= 0 && thread == 0) barrier_arrive(empty + last);
                    keep = 1;
                    last = stage;
                    if (++stage == STAGES) stage = 0, phase ^= 1;
                }
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
                if (last >= 0 && thread == 0) barrier_arrive(empty + last);
                p.end(result, sums, w.item, w.row + mine * 64 + thread / 32 * 16, w.column, columns[mine], chunk, w.split);
            }
        }
    }
}

#else

constexpr int BM = 64, BN = 64, STAGES = 3;
constexpr int SIZE_A = D * BM * KB, STAGE = SIZE_A + D * BN * KB;

// Thread mapping: 2 by 2 warps with 32 rows and 32 columns each. Shared memory: a ring of STAGES blocks of digits, filled by cp.async
// STAGES - 1 blocks ahead.
extern "C" __global__ void __launch_bounds__(128)
ditto_digits_product(const __grid_constant__ Product p, float* out, const float* __restrict__ bias EPILOGUE_PARAM) {
    extern __shared__ __align__(128) unsigned char ring[];
    __shared__ float columns[BN];
    const Result result = RESULT(out, bias, p.m, p.n);
    typedef Work<BM, BN> Tile;
    const unsigned count = Tile::count(p);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, down = warp / 2 * 32, across = warp % 2 * 32;
    for (unsigned index = blockIdx.x; index < count; index += gridDim.x) {
        const Tile w(p, index);
        const unsigned char* const a = p.a + w.item * p.blocks * D * p.pitch_a * KB;
        const unsigned char* const b = p.b + w.item * p.blocks * D * p.pitch_b * KB;
        auto fetch = [&](i64 block) {
            unsigned char* const to = ring + block % STAGES * STAGE;
            if (block < w.to) {
#pragma unroll
                for (int i = threadIdx.x; i < D * (BM + BN) * 4; i += 128) {
                    const int line = i / 4, g = i % 4, of_a = line < D * BM, l = of_a ? line : line - D * BM;
                    const int d = l / 64, r = l % 64;
                    const i64 pitch = of_a ? p.pitch_a : p.pitch_b, row = min((of_a ? w.row : w.column) + r, pitch - 1);
                    const unsigned char* from = (of_a ? a : b) + ((block * D + d) * pitch + row) * KB + g * 16;
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + line * KB + g * 16)), "l"(from) : "memory");
                }
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
        };
        for (int s = 0; s < STAGES - 1; ++s) fetch(w.from + s);
        for (i64 block = w.from; block < w.to;) {
            const i64 chunk = block / CHUNK_BLOCKS, end = min(w.to, (chunk + 1) * CHUNK_BLOCKS);
            __syncthreads();
            if (threadIdx.x < BN) columns[threadIdx.x] = p.column_scale(w.item, w.column + threadIdx.x, chunk);
            int sums[2][WEIGHTS][16] = {};
            for (; block < end; ++block) {
                asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
                __syncthreads();
                fetch(block + STAGES - 1);
                const unsigned from = shared_address(ring + block % STAGES * STAGE);
#pragma unroll
                for (int step = 0; step < KB / 32; ++step) {
                    unsigned fa[D][2][4], fb[D][2][4];
                    auto at = [&](unsigned tile, int row, int group) { return tile + row * KB + (group ^ (row >> 1 & 3)) * 16; };
#pragma unroll
                    for (int d = 0; d < D; ++d)
#pragma unroll
                        for (int h = 0; h < 2; ++h) {
                            // Of A: rows 0-7 and 8-15 of the first 16 steps, then of the others. Of B: columns 0-7 of both, then 8-15.
                            load_tiles(fa[d][h], at(from + d * BM * KB, down + h * 16 + lane % 16, step * 2 + lane / 16));
                            load_tiles(fb[d][h], at(from + SIZE_A + d * BN * KB, across + h * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
                        }
                    all_pairs([&](int i, int j, int weight) {
#pragma unroll
                        for (int h = 0; h < 2; ++h)
#pragma unroll
                            for (int g = 0; g < 4; ++g)
                                multiply(&sums[h][weight][g * 4], fa[i][h], fb[j][g / 2][g % 2 * 2], fb[j][g / 2][g % 2 * 2 + 1]);
                    });
                }
            }
#pragma unroll
            for (int h = 0; h < 2; ++h) p.end(result, sums[h], w.item, w.row + down + h * 16, w.column + across, columns + across, chunk, w.split);
        }
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
    }
}

#endif

#endif

#endif
