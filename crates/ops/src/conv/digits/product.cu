// Part 3: the product.

#if DITTO_PART == 3

// Where a result lies.
#if DITTO_WIDE
typedef i64 Offset;
#else
typedef int Offset;
#endif

struct Product {
    const unsigned char *a, *b;
    const int *ea, *eb;
    const i64* table;
    i64 m, n, pitch;
    i64 groups, items;       // of a convolution, as many items as groups; of a gradient, runs * groups
    i64 of_digit, of_group;  // bytes of b
    // Of a convolution: positions of an image, the bytes of INTERLEAVE groups of channels of one, and the floats of a channel of the result.
    // Of a gradient: taps in all and along the innermost axis, the bytes of a line, and of one tap's copies.
    i64 positions, width, plane, taps, inner_taps, copy;
    i64 of_image;            // bytes of b
    // Of a gradient: images in all and of a run, channels of a group, groups of k in an image.
    i64 images, run, channels, of_terms;
};

struct Result {
    float* out;
    const float* bias;
#if DITTO_EPILOGUE
    const Epilogue* epilogue;
#endif

    // Ends neighbouring results, with what the epilogue reads besides, and writes them where they are wanted.
    template <int W> __device__ __forceinline__ void put(Vec<W> y, i64 at, const Extras<W>& extras, bool wanted) const {
#if DITTO_EPILOGUE
        extras.finish(*epilogue, y, at, wanted);
#endif
        store_if(out + at, y, wanted);
    }
};

#if DITTO_EPILOGUE
#define RESULT(out, bias) Result{out, bias, &epilogue_with}
#else
#define RESULT(out, bias) Result{out, bias}
#endif

// A tile: its first row and column, the groups of k that there are (the last run may have fewer images), and where its rows' digits begin.
struct Tile {
    i64 row, column, item, group, image, terms, blocks, digits;
    unsigned of_class;

    Tile() = default;
    __device__ __forceinline__ Tile(const Product& p, const Classes& classes, unsigned index, int height, int width) {
        const unsigned tall = (unsigned)((p.m + height - 1) / height), wide = (unsigned)((p.n + width - 1) / width);
        of_class = DITTO_CLASSES > 1 ? index / (count(p, height, width) / DITTO_CLASSES) : 0;
        index -= of_class * (count(p, height, width) / DITTO_CLASSES);
        const Class& c = classes.each[of_class];
        const unsigned of = index / tall / wide, run = of / (unsigned)p.groups;
        row = (i64)(index % tall) * height;
        column = (i64)(index / tall % wide) * width;
        item = of;
        group = of - run * (unsigned)p.groups;
        image = run * p.run;
        terms = DITTO_GRAD ? min(p.run, p.images - image) * p.of_terms : c.blocks * 4;
        blocks = (terms + 3) / 4;
        digits = c.digits + item * c.blocks * DIGITS * p.pitch * KB;
    }
    static __device__ __forceinline__ unsigned count(const Product& p, int height, int width) {
        return (unsigned)((p.m + height - 1) / height) * (unsigned)((p.n + width - 1) / width) * (unsigned)p.items * DITTO_CLASSES;
    }

    // Where the digits of a row begin.
    __device__ __forceinline__ const unsigned char* row_digits(const Product& p, i64 row) const {
        return p.a + digits + min(row, p.pitch - 1) * KB;
    }
    // Where a column's digits begin, to which `table` is added, its scale, and where its results lie in a row: -1 if there are none.
    struct Column { const unsigned char* digits; float scale; Offset place; };
    __device__ __forceinline__ Column column_at(const Product& p, const Axes& axes, i64 at) const {
        const bool in = at < p.n;
        const i64 column = min(at, p.n - 1);
        const unsigned char* const from = p.b + group * p.of_group;
        Column x;
        int e;
        if (DITTO_GRAD) {
            const i64 channel = quotient(column, p.taps), tap = column - channel * p.taps, outer = quotient(tap, p.inner_taps);
            x.digits = from + image * p.of_image + channel * DIGITS * p.of_digit + (tap - outer * p.inner_taps) * p.copy +
                       axes.tap((unsigned)outer) * p.width;
            x.place = (Offset)column;
            e = p.eb[item * p.channels + channel];
        } else {
            const i64 of = quotient(column, p.positions);
            const Axes::Place place = axes.place((unsigned)(column - of * p.positions));
            x.digits = from + of * p.of_image + place.box * p.width;
            x.place = (Offset)(of * p.groups * p.m * p.plane + place.result);
            e = p.eb[of * p.groups + group];
        }
        x.scale = column_scale_of(e);
        if (!in) x.place = -1;
        return x;
    }

    // What the ends of a lane's two rows need, lane / 4 of a warp's 16 rows from `row` on and 8 more: exponents and bias.
    struct Rows { int e[2]; float add[2]; };
    __device__ __forceinline__ Rows rows_at(const Product& p, const Result& result, i64 row) const {
        Rows x;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i64 r = min(row + threadIdx.x % 32 / 4 + h * 8, p.m - 1);
            x.e[h] = p.ea[item * p.pitch + r];
            x.add[h] = result.bias ? result.bias[group * p.m + r] : -0.0f;
        }
        return x;
    }

    // Ends the sums of a warp's 16 rows from `row` on, of which this lane has those of `rows`, and of N / 4 groups of 8 columns, of which it
    // has columns lane % 4 * 2 and one more. `scales`, `places`: of the warp's columns. Results go through the warp's `spread`, 32 columns at
    // a time, so that neighbouring lanes write neighbouring results: W of a row each.
    template <int N> __device__ __forceinline__ void end(const Product& p, const Result& result, const int (&sums)[WEIGHTS][N], i64 row,
                                                         const Rows& rows, const float* scales, const Offset* places, float* spread) const {
        constexpr int W = DITTO_VC ? 4 : 1, LANES = 32 / W, STEPS = 16 / W, TOGETHER = STEPS < 8 ? STEPS : 8, TURNS = N / 16 * STEPS / TOGETHER;
        const int lane = threadIdx.x % 32, down = lane / LANES, across = lane % LANES * W;
        // Sums become numbers at first, which frees the registers for what the epilogue reads.
        float y[2][N / 2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const RowScale scale(rows.e[h]);
#pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                y[h][i] = __fadd_rn(scale.finished(total(sums, i / 2 * 4 + h * 2 + i % 2), scales[i / 2 * 8 + lane % 4 * 2 + i % 2]), rows.add[h]);
            }
        }
        // Row r, column c. Rows that are written together lie in other banks.
        auto at = [&](int r, int c) { return spread + r * 32 + (c ^ (r & 3) * 8); };
        const i64 line = (DITTO_GRAD ? item * p.m : group * p.m) + row + down;
        const int count = (int)min((i64)16, p.m - row) - down;
        // A turn is TOGETHER steps, each a row further than the one before, or W rows.
        Extras<W> extras[2][TOGETHER];
        auto place_in = [&](int turn) { return places[turn * TOGETHER / STEPS * 32 + across]; };
        auto row_in = [](int turn, int step) { return (turn * TOGETHER % STEPS + step) * W; };
        auto load = [&](int turn) {
#if DITTO_EPILOGUE
            const Offset place = place_in(turn);
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
                // Where nothing is wanted any place will do: a load that might not happen keeps a register for what was there before.
                const int r = row_in(turn, i);
                extras[turn % 2][i].load(*result.epilogue, place >= 0 && r < count ? (line + r) * p.plane + place : 0, 0);
            }
#endif
        };
        load(0);
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            if (turn + 1 < TURNS) load(turn + 1);
            if (turn * TOGETHER % STEPS == 0) {
                __syncwarp();
#pragma unroll
                for (int h = 0; h < 2; ++h)
#pragma unroll
                    for (int g = 0; g < 4; ++g) {
                        const float* const pair = y[h] + (turn * TOGETHER / STEPS * 4 + g) * 2;
                        *(float2*)at(lane / 4 + h * 8, g * 8 + lane % 4 * 2) = make_float2(pair[0], pair[1]);
                    }
                __syncwarp();
            }
            const Offset place = place_in(turn);
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
                const int r = row_in(turn, i);
                result.put(*(const Vec<W>*)at(r + down, across), (line + r) * p.plane + place, extras[turn % 2][i], place >= 0 && r < count);
            }
        }
    }

    // Tells the cache what the epilogue will read for these results: each of four lanes that share 8 columns tells a quarter.
    template <int N> __device__ __forceinline__ void expect(const Product& p, const Result& result, i64 row, const Offset* places) const {
#if DITTO_EPILOGUE
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i64 r = row + lane / 4 + h * 8, line = (DITTO_GRAD ? item * p.m + r : group * p.m + r) * p.plane;
            if (r >= p.m) continue;
#pragma unroll
            for (int g = 0; g < N / 4; g += 4) {
                const Offset place = places[(g + lane % 4) * 8];
                if (place >= 0) Extras<1>::expect(*result.epilogue, line + place);
            }
        }
#endif
    }
};

#if DITTO_HOPPER

// DITTO_WM warp groups have 64 rows each of ACROSS columns.
constexpr int CONSUMERS = DITTO_WM, BM = 64 * CONSUMERS, BN = ACROSS, STAGES = DITTO_STAGES;
constexpr int SIZE_A = DIGITS * BM * KB, STAGE = SIZE_A + DIGITS * BN * KB;
// Where one warp group multiplies, a multiprocessor has two blocks of threads: one multiplies while the other ends its tile.
constexpr int RESIDENT = CONSUMERS > 1 ? 1 : 2;
#define FEWER_REGISTERS asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(CONSUMERS > 1 ? 40 : 24))
#define MORE_REGISTERS asm volatile("setmaxnreg.inc.sync.aligned.u32 232;")
// Columns that 128 threads copy at a time, and stages until a copy is waited for. A stage is free when the next one is there and has begun.
constexpr int AT_ONCE = 32, PASSES = BN / AT_ONCE, LATER = STAGES < 4 ? STAGES - 2 : 2;
static_assert(STAGES > 2);

// Thread mapping: warp group 0 copies digits into a ring of STAGES blocks, the others multiply. Rows of a block are one range for each digit;
// columns are copied by cp.async. A block of threads takes one tile after the other, so that the copies
// for the next one go on while results are written.
extern "C" __global__ void __launch_bounds__(128 * (1 + CONSUMERS), RESIDENT)
ditto_conv_product(const __grid_constant__ Product p, const __grid_constant__ Classes classes, float* out, const float* __restrict__ bias EPILOGUE_PARAM) {
    extern __shared__ unsigned char raw[];
    __shared__ u64 full[STAGES], empty[STAGES];
    // Of the tiles that are under way: those with a block in the ring, and the one that is ended.
    __shared__ Tile tiles[STAGES + 1];
    __shared__ float scales[STAGES + 1][BN];
    __shared__ Offset places[STAGES + 1][BN];
    __shared__ const unsigned char* starts[BN];
    unsigned char* const ring = raw + (1024 - shared_address(raw) % 1024) % 1024;
    const unsigned count = Tile::count(p, BM, BN);
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
    if (threadIdx.x == 0) {
        // A stage is full when its rows are there, and the columns of four warps.
        for (int s = 0; s < STAGES; ++s) barrier_init(full + s, 1 + 4), barrier_init(empty + s, CONSUMERS);
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncthreads();
    int stage = 0, turn = 0;
    if (group == 0) {
        FEWER_REGISTERS;
        const int quarter = thread / (AT_ONCE * INTERLEAVE) * INTERLEAVE + thread % INTERLEAVE, line = thread / INTERLEAVE % AT_ONCE;
        int phase = 1, due = 0, waiting = 0;
        // The copies of the stage that is due are there, for tensor cores too.
        auto arrive = [&] {
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (thread % 32 == 0) barrier_arrive(full + due);
            if (++due == STAGES) due = 0;
        };
        for (unsigned index = blockIdx.x; index < count; index += gridDim.x) {
            const Tile tile(p, classes, index, BM, BN);
            const Class& of = classes.each[tile.of_class];
            const int bytes_a = (int)min((i64)BM, p.pitch - tile.row) * KB;
            // A thread looks where a column lies, for all.
            Tile::Column own[(BN + 127) / 128];
#pragma unroll
            for (int c = thread, i = 0; c < BN; c += 128, ++i) starts[c] = (own[i] = tile.column_at(p, of.axes, tile.column + c)).digits;
            asm volatile("barrier.sync 1, 128;" ::: "memory");
            const unsigned char *a = tile.row_digits(p, tile.row), *b[PASSES];
#pragma unroll
            for (int i = 0; i < PASSES; ++i) b[i] = starts[line + i * AT_ONCE];
            asm volatile("barrier.sync 1, 128;" ::: "memory");
            for (int block = 0; block < (int)tile.blocks; ++block) {
                const int q = block * 4 + quarter;
                const i64 offset = q < tile.terms ? p.table[of.table + q] : 0;
                barrier_wait(empty + stage, phase);
                if (block == 0) {
                    if (thread == 0) tiles[turn] = tile;
#pragma unroll
                    for (int c = thread, i = 0; c < BN; c += 128, ++i) scales[turn][c] = own[i].scale, places[turn][c] = own[i].place;
                    if (++turn > STAGES) turn = 0;
                }
                unsigned char* const to = ring + stage * STAGE;
                if (thread == 0) {
                    barrier_arrive(full + stage, DIGITS * bytes_a);
#pragma unroll
                    for (int d = 0; d < DIGITS; ++d) copy(to + d * BM * KB, a + d * p.pitch * KB, bytes_a, full + stage);
                }
                a += DIGITS * p.pitch * KB;
                const unsigned to_b = shared_address(to + SIZE_A) + place_in<BN, INTERLEAVE>(line, quarter);
#pragma unroll
                for (int i = 0; i < PASSES; ++i)
#pragma unroll
                    for (int d = 0; d < DIGITS; ++d) copy_16(to_b + d * BN * KB + i * AT_ONCE * 16 * INTERLEAVE, b[i] + offset + d * p.of_digit);
                asm volatile("cp.async.commit_group;" ::: "memory");
                if (waiting == LATER) {
                    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
                    arrive();
                } else {
                    ++waiting;
                }
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
        }
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        for (; waiting > 0; --waiting) arrive();
    } else {
        MORE_REGISTERS;
        const int down = (group - 1) * 64, warp_row = down + thread / 32 * 16;
        float* const spread = (float*)(ring + STAGES * STAGE) + warp_row * 32;
        const Result result = RESULT(out, bias);
        int phase = 0;
        for (unsigned index = blockIdx.x; index < count; index += gridDim.x) {
            barrier_wait(full + stage, phase);
            const Tile tile = tiles[turn];
            const float* const scale = scales[turn];
            const Offset* const place = places[turn];
            if (++turn > STAGES) turn = 0;
            const i64 row = tile.row + warp_row;
            const Tile::Rows rows = tile.rows_at(p, result, row);
            tile.expect<BN / 2>(p, result, row, place);
            // What was in the registers is not needed any more.
            int sums[WEIGHTS][BN / 2];
            const unsigned char *const a = ring + down * KB, *const b = ring + SIZE_A;
            multiply_stages<INTERLEAVE, STAGES, STAGE>(sums, (int)tile.blocks, stage, phase, a, BM * KB, b, BN * KB, full, empty, thread == 0);
            tile.end(p, result, sums, row, rows, scale, place, spread);
        }
    }
}

#else

// DITTO_WM and _WN are warps, each with 32 rows and 32 columns.
constexpr int WM = DITTO_WM, WN = DITTO_WN, BM = 32 * WM, BN = 32 * WN, THREADS = 32 * WM * WN, STAGES = DITTO_STAGES;
constexpr int SIZE_A = DIGITS * BM * KB, STAGE = SIZE_A + DIGITS * BN * KB;
// Rows that are copied at a time: four threads have the 64 bytes of one.
constexpr int AT_ONCE = THREADS / 4, PASSES_A = (BM + AT_ONCE - 1) / AT_ONCE, PASSES_B = (BN + AT_ONCE - 1) / AT_ONCE;

// Shared memory: a ring of STAGES blocks of digits, filled by cp.async STAGES - 1 blocks ahead, then what results are spread by. A block of
// threads takes one tile after the other.
extern "C" __global__ void __launch_bounds__(THREADS)
ditto_conv_product(const __grid_constant__ Product p, const __grid_constant__ Classes classes, float* out, const float* __restrict__ bias EPILOGUE_PARAM) {
    extern __shared__ __align__(128) unsigned char ring[];
    __shared__ float scales[BN];
    __shared__ Offset places[BN];
    __shared__ const unsigned char* starts[BN];
    const int thread = threadIdx.x, warp = thread / 32, down = warp / WN * 32, across = warp % WN * 32;
    const int quarter = thread % 4, line = thread / 4;
    // Of columns.
    const int quarter_b = thread / (AT_ONCE * INTERLEAVE) * INTERLEAVE + thread % INTERLEAVE, line_b = thread / INTERLEAVE % AT_ONCE;
    float* const spread = (float*)(ring + STAGES * STAGE) + warp * 16 * 32;
    const Result result = RESULT(out, bias);
    const unsigned count = Tile::count(p, BM, BN);
    for (unsigned index = blockIdx.x; index < count; index += gridDim.x) {
        const Tile tile(p, classes, index, BM, BN);
        const Class& of = classes.each[tile.of_class];
        const unsigned char *from_a[PASSES_A], *from_b[PASSES_B];
#pragma unroll
        for (int i = 0; i < PASSES_A; ++i) from_a[i] = tile.row_digits(p, tile.row + line + i * AT_ONCE) + quarter * 16;
#pragma unroll
        for (int c = thread; c < BN; c += THREADS) {
            const Tile::Column x = tile.column_at(p, of.axes, tile.column + c);
            starts[c] = x.digits, scales[c] = x.scale, places[c] = x.place;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PASSES_B; ++i) from_b[i] = starts[min(line_b + i * AT_ONCE, BN - 1)];
        auto fetch = [&](i64 block) {
            if (block < tile.blocks) {
                const i64 q = block * 4 + quarter_b, offset = q < tile.terms ? p.table[of.table + q] : 0;
                const unsigned to = shared_address(ring + block % STAGES * STAGE);
#pragma unroll
                for (int d = 0; d < DIGITS; ++d) {
#pragma unroll
                    for (int i = 0; i < PASSES_A; ++i) {
                        const int r = line + i * AT_ONCE;
                        if (r < BM) copy_16(to + (d * BM + r) * KB + quarter * 16, from_a[i] + (block * DIGITS + d) * p.pitch * KB);
                    }
#pragma unroll
                    for (int i = 0; i < PASSES_B; ++i) {
                        const int r = line_b + i * AT_ONCE;
                        if (r < BN) copy_16(to + SIZE_A + d * BN * KB + place_in<BN, INTERLEAVE>(r, quarter_b), from_b[i] + d * p.of_digit + offset);
                    }
                }
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
        };
        for (int s = 0; s < STAGES - 1; ++s) fetch(s);
        int sums[2][WEIGHTS][16] = {};
        for (i64 block = 0; block < tile.blocks; ++block) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncthreads();
            fetch(block + STAGES - 1);
            const unsigned from = shared_address(ring + block % STAGES * STAGE);
            multiply_block<BM, BN, INTERLEAVE>(sums, from, from + SIZE_A, down, across);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i64 row = tile.row + down + h * 16;
            tile.end(p, result, sums[h], row, tile.rows_at(p, result, row), scales + across, places + across, spread);
        }
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
    }
}

#endif

#endif
