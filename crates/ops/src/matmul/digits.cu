// Products in digits, out[z] = A[z] * B[z] (+ bias), row-major: modes `fast` and `turbo`, the same bits as the CPU.
//
// A row of A, and a column of B, is scaled by a power of two and rounded to integers of DITTO_DIGITS digits of 8 bits. Tensor cores
// multiply digits and add in integers, which is exact: tiles and splits of k do not change a bit. The kernels, one after the other:
//   ditto_digits          the digits and exponents of both operands
//   ditto_digits_product  the product; with splits of k, its exact sums, which ditto_digits_reduce adds and finishes
//
// This text is compiled at run time behind a few `#define` lines that pick one variant:
//   DITTO_PART        0: the kernels that make digits; 1: the product; 2: the sum over splits
//   DITTO_DIGITS      digits of a number: 3 in `fast`, 2 in `turbo`
//   DIGIT_CHUNK       terms of k that share a scale and an exact sum, the contract's
//   LEAST_EXPONENT    of a row, the contract's
//   DITTO_TA, _TB     1: A is stored (k, m); 1: B is stored (n, k)
//   DITTO_VA, _VB     1: 16-byte loads of A, of B: aligned, the contiguous axis a multiple of 4 long
//   DITTO_WARPS       warps that share a row whose terms are contiguous: 1, 2, 4 or 8
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
    unsigned* maxima;  // [product][chunk][rows], zeros at first, if terms are not contiguous
    unsigned* arrived;  // [product][chunk][32 rows], zeros at first: parts whose maxima are in
    i64 parts;         // of a chunk
    int* exponents;
    unsigned char* digits;

    __device__ __forceinline__ unsigned char* place(i64 item, i64 block, int digit, i64 row) const {
        return digits + (((item * blocks + block) * DIGITS + digit) * pitch + row) * KB;
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
    float m = 0.0f;
#pragma unroll
    for (int i = 0; i < KEPT; ++i) kept[i] = quad<VECTOR>(line, (i * STEP + lane) * 4, terms);
#pragma unroll
    for (int i = 0; i < KEPT; ++i) m = larger(m, kept[i]);
    for (i64 at = (KEPT * STEP + lane) * 4; at < terms; at += 4 * STEP) m = larger(m, quad<VECTOR>(line, at, terms));
    unsigned largest = largest_of_warp(m);
    if (WARPS > 1) {
        shared[threadIdx.x / 32] = largest;
        __syncthreads();
        largest = __reduce_max_sync(~0u, shared[threadIdx.x / STEP * WARPS + threadIdx.x % WARPS]);
    }
    if (row >= o.pitch) return;
    const int e = exponent_of(largest);
    if (lane == 0) o.exponents[(item * o.chunks + chunk) * o.pitch + row] = e;
    const float scale = scale_of(e);
    // Each warp has two blocks at a time.
    const i64 from = chunk * CHUNK_BLOCKS, place = o.pitch * KB;
    const int blocks = (int)min((i64)CHUNK_BLOCKS, o.blocks - from);
    unsigned char* to = o.place(item, from + lane / 16, 0, row) + word_at(row, lane % 16);
    int block = lane / 16;
    auto put = [&](const Quad& x) {
        unsigned digits[DIGITS];
        split(x, scale, digits);
#pragma unroll
        for (int d = 0; d < DIGITS; ++d) *(unsigned*)(to + d * place) = digits[d];
        to += STEP / 16 * DIGITS * place;
        block += STEP / 16;
    };
#pragma unroll
    for (int i = 0; i < KEPT; ++i)
        if (block < blocks) put(kept[i]);
    while (block < blocks) put(quad<VECTOR>(line, (block * 16 + lane % 16) * 4, terms));
}

// Terms of a row are `rows` floats apart: a block of threads has 32 rows and a part of a chunk, a few spans of SPAN terms. It takes their
// maxima, waits for those of the other parts, and makes digits of what it still holds; with one span, numbers are read once.
// It looks for them LOOKS times, some milliseconds.
constexpr int SPAN = 512, TURN = 128, LOOKS = 4096;
struct Turn {
    unsigned maxima[32][33];
    int exponents[32];
    bool known;
    unsigned words[2][DIGITS][32][33];
};

template <int VECTOR> __device__ void digits_of_columns(const Operand& o, i64 index, Turn& s) {
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const i64 strips = (o.pitch + 31) / 32, part = index % o.parts, strip = index / o.parts % strips;
    const i64 place = index / o.parts / strips, chunk = place % o.chunks, item = place / o.chunks, row0 = strip * 32;
    // Four rows, and four terms of each in every TURN.
    const i64 row = row0 + t % 8 * 4, from = chunk * DIGIT_CHUNK, length = min((i64)DIGIT_CHUNK, o.blocks * KB - from);
    const i64 spans = (length + SPAN - 1) / SPAN, begin = spans * part / o.parts, end = spans * (part + 1) / o.parts;
    const float* const lines = o.x + item * o.stride;
    Quad x[SPAN / TURN][4];
    auto load = [&](i64 span) {
#pragma unroll
        for (int u = 0; u < SPAN / TURN; ++u)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const i64 term = from + span * SPAN + u * TURN + t / 8 * 4 + i;
                x[u][i] = term < o.k ? quad<VECTOR>(lines + term * o.rows, row, o.rows) : Quad{};
            }
    };
    // First of this part. If another part is not there for long, since the GPU has no place for it, then of all parts.
    bool alone = false;
    for (;; alone = true) {
        float largest[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (i64 span = alone ? 0 : begin; span < (alone ? spans : end); ++span) {
            load(span);
#pragma unroll
            for (int u = 0; u < SPAN / TURN; ++u)
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int r = 0; r < 4; ++r) largest[r] = larger(largest[r], x[u][i].v[r]);
        }
#pragma unroll
        for (int r = 0; r < 4; ++r) s.maxima[t % 8 * 4 + r][t / 8] = __float_as_uint(largest[r]);
        __syncthreads();
        // A lane has a row.
        if (warp == 0) {
            const bool in = row0 + lane < o.rows;
            unsigned all = s.maxima[lane][0];
#pragma unroll
            for (int i = 1; i < 32; ++i) all = max(all, s.maxima[lane][i]);
            bool known = true;
            if (!alone) {
                unsigned* const maximum = o.maxima + place * o.rows + row0 + lane;
                if (in) atomicMax(maximum, all);
                __syncwarp();
                __threadfence();
                unsigned* const arrived = o.arrived + place * strips + strip;
                if (lane == 0) atomicAdd(arrived, 1u);
                known = false;
                for (int looks = 0; looks < LOOKS && !known; ++looks) {
                    unsigned there;
                    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(arrived) : "memory");
                    known = __all_sync(~0u, there >= o.parts);
                }
                all = in ? __ldcg(maximum) : 0;
            }
            const int e = exponent_of(in ? all : 0);
            if (known && part == 0 && row0 + lane < o.pitch) o.exponents[place * o.pitch + row0 + lane] = e;
            s.exponents[lane] = e;
            s.known = known;
        }
        __syncthreads();
        if (s.known) break;
    }
    float scale[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) scale[r] = scale_of(s.exponents[t % 8 * 4 + r]);
    // Of each digit, a warp stores every eighth row: these have their words at the same places of a block.
    const i64 next = o.pitch * KB;
    unsigned char* const to = o.place(item, from / KB + lane / 16, 0, row0 + warp) + word_at(row0 + warp, lane % 16);
    for (i64 span = end - 1; span >= begin; --span) {
        if (alone || span < end - 1) load(span);
#pragma unroll
        for (int u = 0; u < SPAN / TURN; ++u) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                unsigned digits[DIGITS];
                split(Quad{x[u][0].v[r], x[u][1].v[r], x[u][2].v[r], x[u][3].v[r]}, scale[r], digits);
#pragma unroll
                for (int d = 0; d < DIGITS; ++d) s.words[u % 2][d][t % 8 * 4 + r][t / 8] = digits[d];
            }
            // Double buffered: one turn is read while the next one is written.
            __syncthreads();
            const i64 block = (span * SPAN + u * TURN) / KB;
            unsigned char* const at = to + block * DIGITS * next;
            if (from / KB + block + lane / 16 < o.blocks) {
#pragma unroll
                for (int r = 0; r < 32; r += 8)
#pragma unroll
                    for (int d = 0; d < DIGITS; ++d)
                        if (row0 + warp + r < o.pitch) *(unsigned*)(at + d * next + r * KB) = s.words[u % 2][d][warp + r][lane];
            }
        }
    }
}

// `first`: pieces of work for A; those after are for B. Pieces are handed out in order, and parts that wait for each other are
// neighbours.
extern "C" __global__ void __launch_bounds__(256, DITTO_TA || !DITTO_TB ? 2 : 3)
ditto_digits(const __grid_constant__ Operand a, const __grid_constant__ Operand b, i64 first, unsigned* ticket) {
    __shared__ Turn turn;
    i64 index = blockIdx.x;
    if (DITTO_TA || !DITTO_TB) {
        __shared__ unsigned mine;
        if (threadIdx.x == 0) mine = atomicAdd(ticket, 1u);
        __syncthreads();
        index = mine;
    }
    if (index < first) {
        if (DITTO_TA) digits_of_columns<DITTO_VA>(a, index, turn);
        else digits_of_row<DITTO_VA>(a, index, turn.maxima[0]);
    } else {
        if (DITTO_TB) digits_of_row<DITTO_VB>(b, index - first, turn.maxima[0]);
        else digits_of_columns<DITTO_VB>(b, index - first, turn);
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

    __device__ __forceinline__ i64 place(i64 item, i64 row, i64 column) const { return (item * m + row) * n + column; }

    // What neighbouring results need besides their sums: those of chunks before, unless this is the `first`, and for the `last` what the
    // epilogue reads.
    template <int W> struct Before { Vec<W> old; Extras<W> extras; };
    template <int W> __device__ __forceinline__ void load(Before<W>& x, i64 at, i64 column, bool first, bool last) const {
        if (!first) x.old = *(const Vec<W>*)(out + at);
#if DITTO_EPILOGUE
        if (last) x.extras.load(*epilogue, at, column);
#endif
    }
    template <int W> __device__ __forceinline__ void put(Vec<W> v, const Before<W>& x, i64 at, i64 column, bool first, bool last,
                                                         bool wanted = true) const {
        if (!first) {
#pragma unroll
            for (int i = 0; i < W; ++i) v.v[i] = __fadd_rn(x.old.v[i], v.v[i]);
        }
        if (last) {
            if (DITTO_BIAS) {
#pragma unroll
                for (int i = 0; i < W; ++i) v.v[i] = __fadd_rn(v.v[i], wanted ? bias[column + i] : 0.0f);
            }
#if DITTO_EPILOGUE
            x.extras.finish(*epilogue, v, at, wanted);
#endif
        }
        store_if(out + at, v, wanted);
    }
};

#if DITTO_EPILOGUE
#define RESULT(out, bias, m, n) Result{out, bias, m, n, &epilogue_with}
#else
#define RESULT(out, bias, m, n) Result{out, bias, m, n}
#endif

#if DITTO_PART == 2

// Adds the sums of all splits, [split][product][m][n], and finishes them. There is one chunk. A thread has W neighbouring results.
extern "C" __global__ void __launch_bounds__(256)
ditto_digits_reduce(const i64* __restrict__ sums, const int* __restrict__ ea, const int* __restrict__ eb, float* out,
                    const float* __restrict__ bias, i64 m, i64 n, i64 pitch_a, i64 pitch_b, i64 batch, i64 shares_a,
                    i64 splits EPILOGUE_PARAM) {
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
        const RowScale scale(ea[(shares_a ? 0 : item) * pitch_a + row]);
        Vec<W> v;
#pragma unroll
        for (int i = 0; i < W; ++i) v.v[i] = scale.finished(Sum(total[i]), column_scale_of(eb[item * pitch_b + column + i]));
        Result::Before<W> before;
        result.load(before, at, column, true, true);
        result.put(v, before, at, column, true, true);
    }
}

#else

struct Product {
    const unsigned char *a, *b;  // digits
    const int *ea, *eb;
    i64 m, n, blocks, chunks, pitch_a, pitch_b, batch, shares_a, splits;  // shares_a: all products have the same A
    i64* sums;  // with DITTO_SPLIT

    __device__ __forceinline__ i64 item_of_a(i64 item) const { return shares_a ? 0 : item; }

    // Writes two neighbouring sums of a row of a split.
    __device__ __forceinline__ void put(Sum s0, Sum s1, i64 item, i64 row, i64 column, i64 split) const {
        i64* to = sums + ((split * batch + item) * m + row) * n + column;
        if (DITTO_VC) {
            *(longlong2*)to = make_longlong2(s0.exact(), s1.exact());
        } else {
            to[0] = s0.exact();
            if (column + 1 < n) to[1] = s1.exact();
        }
    }

    // The sums of a warp's 16 rows from `row` on, of which this lane has rows lane / 4 and 8 more, and of N / 4 groups of 8 columns from
    // `column` on columns lane % 4 * 2 and one more. `row_e`: the exponents of the two rows; `columns`: the scales of columns from `column` on.
    template <int N> __device__ __forceinline__ void end(const Result& result, const int (&s)[WEIGHTS][N], i64 item, i64 row,
                                                         i64 column, const int (&row_e)[2], const float* columns, i64 chunk,
                                                         i64 split) const {
        const int lane = threadIdx.x % 32;
        row += lane / 4;
        column += lane % 4 * 2;
        columns += lane % 4 * 2;
        const RowScale scale[2] = {RowScale(row_e[0]), RowScale(row_e[1])};
        const int left = (int)min(n - column, (i64)(2 * N));
        [[maybe_unused]] const bool first = chunk == 0, last = chunk + 1 == chunks;
        constexpr int W = DITTO_VC ? 2 : 1, TOGETHER = DITTO_SPLIT ? 1 : DIGITS == 2 ? 4 : 2;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (row + h * 8 >= m) continue;
            const i64 place = result.place(item, row + h * 8, column);
#pragma unroll
            for (int g0 = 0; g0 < N / 4; g0 += TOGETHER) {
#if DITTO_SPLIT
                if (g0 * 8 < left) put(total(s, g0 * 4 + h * 2), total(s, g0 * 4 + h * 2 + 1), item, row + h * 8, column + g0 * 8, split);
#else
                // What is read besides is on its way for several results at a time.
                Result::Before<W> before[TOGETHER][2 / W];
#pragma unroll
                for (int g = 0; g < TOGETHER; ++g)
#pragma unroll
                    for (int e = 0; e < 2 / W; ++e) {
                        const int c = (g0 + g) * 8 + e;
                        if (c < left) result.load(before[g][e], place + c, column + c, first, last);
                    }
#pragma unroll
                for (int g = 0; g < TOGETHER; ++g)
#pragma unroll
                    for (int e = 0; e < 2 / W; ++e) {
                        const int c = (g0 + g) * 8 + e;
                        Vec<W> v;
#pragma unroll
                        for (int i = 0; i < W; ++i) v.v[i] = scale[h].finished(total(s, (g0 + g) * 4 + h * 2 + e + i), columns[c + i]);
                        result.put(v, before[g][e], place + c, column + c, first, last, c < left);
                    }
#endif
            }
        }
    }

    // Tells the cache what the epilogue will read for these results: each of four lanes that share 8 columns tells a quarter.
    template <int N> __device__ __forceinline__ void expect(const Result& result, i64 item, i64 row, i64 column) const {
#if DITTO_EPILOGUE
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i64 r = row + lane / 4 + h * 8;
#pragma unroll
            for (int g = 0; g < N / 4; g += 4) {
                const i64 c = column + (g + lane % 4) * 8;
                if (r < m && c < n) Extras<1>::expect(*result.epilogue, result.place(item, r, c));
            }
        }
#endif
    }

    // The exponents of rows lane / 4 and 8 more from `row` on, for `end`.
    __device__ __forceinline__ void row_exponents(int (&e)[2], i64 item, i64 row, i64 chunk) const {
        const int* const from = ea + (item_of_a(item) * chunks + chunk) * pitch_a;
        row += threadIdx.x % 32 / 4;
#pragma unroll
        for (int h = 0; h < 2; ++h) e[h] = row + h * 8 < m ? from[row + h * 8] : 0;
    }

    // The scale of a column, for `end`.
    __device__ __forceinline__ float column_scale(i64 item, i64 column, i64 chunk) const {
        return column_scale_of(column < n ? eb[(item * chunks + chunk) * pitch_b + column] : 0);
    }
};

// A piece of work: a tile of a product, and the blocks of k that it sums. Tiles are walked in groups of rows, so that those that
// run at the same time share operands.
template <int BM, int BN> struct Work {
    int item, row, column, split, from, to;

    Work() = default;

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
        row = (group * GROUP + rest % height) * BM;
        column = rest / height * BN;
        from = DITTO_SPLIT ? p.blocks * split / p.splits : 0;
        to = DITTO_SPLIT ? p.blocks * (split + 1) / p.splits : p.blocks;
    }
};

#if DITTO_HOPPER

constexpr int BM = 128, BN = ACROSS, CONSUMERS = BM / 64;
constexpr int SIZE_A = DIGITS * BM * KB, STAGE = SIZE_A + DIGITS * BN * KB;
constexpr int STAGES = DIGITS == 2 ? 6 : 5;

// Thread mapping: warp group 0 copies digits into a ring of STAGES blocks, the others multiply 64 rows each. A block of threads takes
// one piece of work after the other, so that the copies for the next one go on while results are written. The first group also says
// which piece it is: that goes with its first block, so there are at most STAGES + 1 at a time.
extern "C" __global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
ditto_digits_product(const __grid_constant__ Product p, float* out, const float* __restrict__ bias EPILOGUE_PARAM) {
    extern __shared__ unsigned char raw[];
    __shared__ u64 full[STAGES], empty[STAGES];
    unsigned char* const ring = raw + (1024 - shared_address(raw) % 1024) % 1024;
    __shared__ float columns[CONSUMERS][BN];
    typedef Work<BM, BN> Tile;
    __shared__ Tile pieces[STAGES + 1];
    const Result result = RESULT(out, bias, p.m, p.n);
    const unsigned count = Tile::count(p);
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) barrier_init(full + s, 1), barrier_init(empty + s, CONSUMERS);
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncthreads();
    int stage = 0, piece = 0;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x > 0) return;
        int phase = 1;
        for (unsigned index = blockIdx.x; index < count; index += gridDim.x) {
            const Tile w(p, index);
            const int bytes_a = (int)min((i64)BM, p.pitch_a - w.row) * KB, bytes_b = (int)min((i64)BN, p.pitch_b - w.column) * KB;
            const unsigned char* a = p.a + ((p.item_of_a(w.item) * p.blocks + w.from) * DIGITS * p.pitch_a + w.row) * KB;
            const unsigned char* b = p.b + ((w.item * p.blocks + w.from) * DIGITS * p.pitch_b + w.column) * KB;
            for (int block = w.from; block < w.to; ++block) {
                barrier_wait(empty + stage, phase);
                if (block == w.from) pieces[piece] = w;
                barrier_arrive(full + stage, DIGITS * (bytes_a + bytes_b));
                unsigned char* const to = ring + stage * STAGE;
#pragma unroll
                for (int d = 0; d < DIGITS; ++d) {
                    copy(to + d * BM * KB, a, bytes_a, full + stage);
                    copy(to + SIZE_A + d * BN * KB, b, bytes_b, full + stage);
                    a += p.pitch_a * KB;
                    b += p.pitch_b * KB;
                }
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
            if (++piece > STAGES) piece = 0;
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int mine = group - 1, thread = threadIdx.x % 128;
        int phase = 0;
        for (unsigned index = blockIdx.x; index < count; index += gridDim.x) {
            barrier_wait(full + stage, phase);
            const Tile w = pieces[piece];
            if (++piece > STAGES) piece = 0;
            const i64 row = w.row + mine * 64 + thread / 32 * 16;
            for (int block = w.from; block < w.to;) {
                const int chunk = block / CHUNK_BLOCKS, end = min(w.to, (chunk + 1) * CHUNK_BLOCKS);
                // Scales are on their way while digits are multiplied.
                int row_e[2] = {};
                float column = 0.0f;
                if (!DITTO_SPLIT) {
                    p.row_exponents(row_e, w.item, row, chunk);
                    if (thread < BN) column = p.column_scale(w.item, w.column + thread, chunk);
                }
                if (end == w.to) p.expect<BN / 2>(result, w.item, row, w.column);
                // A chunk has sums of its own: what was in the registers is not needed any more.
                int sums[WEIGHTS][BN / 2];
                const unsigned char *const a = ring + mine * 64 * KB, *const b = ring + SIZE_A;
                multiply_stages<4, STAGES, STAGE>(sums, end - block, stage, phase, a, BM * KB, b, BN * KB, full, empty, thread == 0);
                block = end;
                if (!DITTO_SPLIT) {
                    // All threads of the group have read those before.
                    asm volatile("barrier.sync %0, 128;" ::"r"(group) : "memory");
                    if (thread < BN) columns[mine][thread] = column;
                    asm volatile("barrier.sync %0, 128;" ::"r"(group) : "memory");
                }
                p.end(result, sums, w.item, row, w.column, row_e, columns[mine], chunk, w.split);
            }
        }
    }
}

#else

constexpr int BM = 64, BN = 64, STAGES = 3;
constexpr int SIZE_A = DIGITS * BM * KB, STAGE = SIZE_A + DIGITS * BN * KB;

// Thread mapping: 2 by 2 warps with 32 rows and 32 columns each. Shared memory: a ring of STAGES blocks of digits, filled by cp.async
// STAGES - 1 blocks ahead.
extern "C" __global__ void __launch_bounds__(128)
ditto_digits_product(const __grid_constant__ Product p, float* out, const float* __restrict__ bias EPILOGUE_PARAM) {
    extern __shared__ __align__(128) unsigned char ring[];
    __shared__ float columns[BN];
    const Result result = RESULT(out, bias, p.m, p.n);
    typedef Work<BM, BN> Tile;
    const unsigned count = Tile::count(p);
    const int warp = threadIdx.x / 32, down = warp / 2 * 32, across = warp % 2 * 32;
    for (unsigned index = blockIdx.x; index < count; index += gridDim.x) {
        const Tile w(p, index);
        const unsigned char* const a = p.a + p.item_of_a(w.item) * p.blocks * DIGITS * p.pitch_a * KB;
        const unsigned char* const b = p.b + w.item * p.blocks * DIGITS * p.pitch_b * KB;
        auto fetch = [&](int block) {
            const unsigned to = shared_address(ring + block % STAGES * STAGE);
            if (block < w.to) {
#pragma unroll
                for (int i = threadIdx.x; i < DIGITS * (BM + BN) * 4; i += 128) {
                    const int line = i / 4, g = i % 4, of_a = line < DIGITS * BM, l = of_a ? line : line - DIGITS * BM;
                    const int d = l / 64, r = l % 64;
                    const i64 pitch = of_a ? p.pitch_a : p.pitch_b, row = min((i64)(of_a ? w.row : w.column) + r, pitch - 1);
                    const unsigned char* from = (of_a ? a : b) + (((i64)block * DIGITS + d) * pitch + row) * KB + g * 16;
                    copy_16(to + line * KB + g * 16, from);
                }
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
        };
        for (int s = 0; s < STAGES - 1; ++s) fetch(w.from + s);
        for (int block = w.from; block < w.to;) {
            const int chunk = block / CHUNK_BLOCKS, end = min(w.to, (chunk + 1) * CHUNK_BLOCKS);
            __syncthreads();
            if (threadIdx.x < BN) columns[threadIdx.x] = p.column_scale(w.item, w.column + threadIdx.x, chunk);
            int sums[2][WEIGHTS][16] = {};
            for (; block < end; ++block) {
                asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
                __syncthreads();
                fetch(block + STAGES - 1);
                const unsigned from = shared_address(ring + block % STAGES * STAGE);
                multiply_block<BM, BN>(sums, from, from + SIZE_A, down, across);
            }
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const i64 row = w.row + down + h * 16;
                int row_e[2];
                p.row_exponents(row_e, w.item, row, chunk);
                p.end(result, sums[h], w.item, row, w.column + across, row_e, columns + across, chunk, w.split);
            }
        }
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
    }
}

#endif

#endif

#endif
