// Matrix product in float32: out[z] = A[z] * B[z] (+ bias), row-major, the same bits as the CPU.
//
// This text is compiled at run time behind a few `#define` lines that pick one variant, so that each
// variant is a small module of its own:
//   CHUNK             terms of a chunk of k, the contract's
//   DITTO_BK          k steps per shared-memory stage (divides CHUNK, multiple of 8)
//   DITTO_G           k steps per load of a thread's operands from shared memory: 1, 4 or 8
//   DITTO_WM, _WN     warps of a block along m and along n
//   DITTO_TM, _TN     outputs of a thread along m and along n (1, 2, or a multiple of 4)
//   DITTO_STAGES      stages of the shared-memory ring
//   DITTO_BLOCKS      blocks per multiprocessor the registers are budgeted for
//   DITTO_TA, _TB     1: A is stored (k, m); 1: B is stored (n, k)
//   DITTO_VA, _VB     1: 16-byte loads of A, of B: aligned, the contiguous axis a multiple of 4 long
//   DITTO_VC          1: 16-byte stores (and bias loads): out aligned, n a multiple of 4
//   DITTO_BIAS        1: bias[j] is added once, after everything else
//   DITTO_LONG        1: m, n or k reach 2^31: offsets inside a tile are 64-bit too
//   DITTO_REDUCE      1: compile only `ditto_matmul_reduce`
//   DITTO_TF32        1: tensor cores multiply, see "On tensor cores" below; the order of summation is theirs
//
// Order of summation, for each output on its own and for every variant alike:
//   chunk c = the fused multiply-add chain over k in [CHUNK c, CHUNK c + CHUNK), increasing, from +0.0
//   out     = ((chunk 0 + chunk 1) + chunk 2) + ..., then + bias
// A tile never feeds a padding k to the chain (0 * 0 added to -0.0 would give +0.0): the last, short
// stage is a loop of exactly as many steps as are left. Rows and columns beyond the matrix hold stale
// shared memory; they only reach accumulators that are never stored.

#ifndef DITTO_TF32
#define DITTO_TF32 0
#endif
#ifndef DITTO_CONV
#define DITTO_CONV 0
#endif

// The sum so far and, once it is whole, column j's bias (-0.0 before).
__device__ __forceinline__ float finish(float v, float bias_j) {
    return DITTO_BIAS ? __fadd_rn(v, bias_j) : v;
}

// A value as it is, of which the compiler no longer knows where it comes from.
__device__ __forceinline__ void hide(int& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void hide(i64& x) { asm volatile("" : "+l"(x)); }
__device__ __forceinline__ void hide(float& x) { asm volatile("" : "+f"(x)); }

// Loads and stores of W floats that happen only if `in` is not 0; spelled out, so that each stays one
// instruction (the compiler would make branches of them, and spill).
template <int W> __device__ __forceinline__ void load_if(Vec<W>& v, const float* p, unsigned in) {
    if constexpr (W == 4)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p ld.global.v4.f32 {%0, %1, %2, %3}, [%4];}"
                     : "+f"(v.v[0]), "+f"(v.v[1]), "+f"(v.v[2]), "+f"(v.v[3]) : "l"(p), "r"(in));
    else if constexpr (W == 2)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; @p ld.global.v2.f32 {%0, %1}, [%2];}"
                     : "+f"(v.v[0]), "+f"(v.v[1]) : "l"(p), "r"(in));
    else
        asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.f32 %0, [%1];}"
                     : "+f"(v.v[0]) : "l"(p), "r"(in));
}
template <int W> __device__ __forceinline__ void store_if(const Vec<W>& v, float* p, unsigned in) {
    if constexpr (W == 4)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p st.global.v4.f32 [%4], {%0, %1, %2, %3};}"
                     ::"f"(v.v[0]), "f"(v.v[1]), "f"(v.v[2]), "f"(v.v[3]), "l"(p), "r"(in));
    else if constexpr (W == 2)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; @p st.global.v2.f32 [%2], {%0, %1};}"
                     ::"f"(v.v[0]), "f"(v.v[1]), "l"(p), "r"(in));
    else
        asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p st.global.f32 [%1], %0;}"
                     ::"f"(v.v[0]), "l"(p), "r"(in));
}

#if DITTO_REDUCE

// Adds the partial results of a product whose chunks ran in separate blocks.
//
// Thread mapping: one group of 4 neighbouring outputs (1 without DITTO_VC) per thread, grid-stride.
// No shared memory. Per output: `parts` loads, one store, parts - 1 additions (+ 1 for the bias).
// Order: part 0 + part 1 + ... in increasing order, then the bias.
//
// partial: [parts][total], total = batch * m * n; out: [total]; bias: [n] or unused.
extern "C" __global__ void __launch_bounds__(256)
ditto_matmul_reduce(const float* __restrict__ partial, float* __restrict__ out,
                    const float* __restrict__ bias, i64 total, i64 n, i64 parts EPILOGUE_PARAM) {
    constexpr int V = DITTO_VC ? 4 : 1, AT_ONCE = DITTO_VC ? 16 : 32;
    typedef Vec<V> vec;
    i64 groups = total / V;
    for (i64 g = (i64)blockIdx.x * 256 + threadIdx.x; g < groups; g += (i64)gridDim.x * 256) {
        const float* p = partial + g * V;
        vec sum = *(const vec*)p;
        for (i64 c = 1; c < parts; c += AT_ONCE) {
            // All loads are on their way before one is waited for.
            vec next[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u)
                if (c + u < parts) next[u] = *(const vec*)(p + (c + u) * total);
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u)
                if (c + u < parts)
#pragma unroll
                    for (int e = 0; e < V; ++e) sum.v[e] = __fadd_rn(sum.v[e], next[u].v[e]);
        }
        vec add = {};
        i64 j = 0;
        if (DITTO_BIAS || DITTO_EPILOGUE) {
            j = g * V;
            j = j >> 32 ? j % n : n >> 32 ? j : (unsigned)j % (unsigned)n;
        }
        if (DITTO_BIAS) add = *(const vec*)(bias + j);
#pragma unroll
        for (int e = 0; e < V; ++e) sum.v[e] = finish(sum.v[e], add.v[e]);
#if DITTO_EPILOGUE
        Extras<V> extras;
        extras.load(epilogue_with, g * V, j);
        extras.finish(epilogue_with, sum, g * V);
#endif
        *(vec*)(out + g * V) = sum;
    }
}

#else

#if DITTO_LONG
typedef i64 idx;
#else
typedef int idx;
#endif

constexpr int BK = DITTO_BK, G = DITTO_G, TM = DITTO_TM, TN = DITTO_TN, STAGES = DITTO_STAGES;
constexpr int THREADS = 32 * DITTO_WM * DITTO_WN;
constexpr int LM = 8, LN = 4;  // the lanes of a warp along m and along n
constexpr int BM = DITTO_WM * LM * TM, BN = DITTO_WN * LN * TN;
// A stage's copies are started in so many portions, one per group of k steps (measured).
[[maybe_unused]] constexpr int PIECES = G > 1 ? BK / G / 2 : TM * TN > 64 ? 1 : 2;
constexpr int BAND = 8;  // tile rows walked together, for the second-level cache
static_assert(CHUNK % BK == 0 && BK % (2 * G) == 0, "a chunk is whole stages, a stage pairs of groups");

// How a tile of an operand (rows: m of A, n of B) lies in shared memory.
enum Layout {
    ROWS_LAST,   // [BK][rows]: the operand's rows are contiguous and are copied as they are
    TRANSPOSED,  // [BK][rows + 4]: its k is contiguous; the copy transposes, 4 bytes at a time
    K_LAST,      // [rows][BK + 4]: its k is contiguous and is copied as it is
};
constexpr Layout K_CONTIGUOUS = G == 1 && !DITTO_TF32 ? TRANSPOSED : K_LAST;
constexpr Layout LA = DITTO_TA ? ROWS_LAST : K_CONTIGUOUS, LB = DITTO_TB ? K_CONTIGUOUS : ROWS_LAST;
// On tensor cores: the two steps of a thread are neighbours, where both operands can be loaded so.
constexpr bool PAIRS = DITTO_TF32 && LA == K_LAST && LB == K_LAST;
// Neighbouring outputs of a thread: what one load of [BK][rows] takes; none with K_LAST.
constexpr int VM = LA == K_LAST ? 1 : TM < 4 ? TM : 4;
#if DITTO_TF32
// Columns of B that a thread loads are half of those it has results of; neighbours among them likewise.
constexpr int TB = TN / 2, VB = LB == K_LAST ? 1 : TB < 4 ? TB : 4, VN = 2 * VB;
#else
constexpr int VN = LB == K_LAST ? 1 : TN < 4 ? TN : 4;
#endif

// Copies 4 W bytes to shared memory in the background, if bit i of mask is set; on tensor cores, where what is beyond
// the end of k is multiplied too, zeros if it is not.
template <int W> __device__ __forceinline__ void copy(unsigned dst, const float* src, unsigned mask, int i) {
    if (DITTO_TF32 && W == 4)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(mask & 1u << i ? 16 : 0));
    else if (DITTO_TF32)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(dst), "l"(src), "r"(mask & 1u << i ? 4 : 0));
    else if (W == 4)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}"
                     ::"r"(dst), "l"(src), "r"(mask & 1u << i));
    else
        asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], 4;}"
                     ::"r"(dst), "l"(src), "r"(mask & 1u << i));
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;"); }
// Waits until at most N of this thread's latest groups of copies are still on their way.
template <int N> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// One operand's way from global to shared memory to registers.
//
// Copies: a pass is one copy per thread. ROWS_LAST and K_LAST: neighbouring lanes copy neighbouring words or
// 16-byte groups (VEC). TRANSPOSED: 8 lanes take 8 consecutive k of a row, a warp 4 rows; a pitch of
// 4 mod 32 puts the 32 words into 32 banks. (Measured, such a copy still takes about 8 cycles of shared
// memory; all copies together take less than half of what the reads take.)
// Reads: ROWS_LAST and TRANSPOSED: up to 4 neighbouring rows of one k; K_LAST: 4 neighbouring k of one row,
// the rows of a warp's lanes being neighbours and a pitch of 4 mod 16 apart. No bank conflicts.
template <int ROWS, int T, Layout L, bool VEC> struct Tile {
    static constexpr int PITCH = L == ROWS_LAST ? ROWS + (DITTO_TF32 ? 8 : 0) : L == TRANSPOSED ? ROWS + 4 : PAIRS ? BK : BK + 4;
    static constexpr int SIZE = PITCH * (L == K_LAST ? ROWS : BK);
    static constexpr int WIDTH = VEC && L != TRANSPOSED ? 4 : 1;
    // Copies in a line along the axis that lanes follow.
    static constexpr int LINE = (L == ROWS_LAST ? ROWS : L == TRANSPOSED ? ROWS : BK) / WIDTH;
    // Threads that copy: all, or three quarters of them where lines have a factor of three.
    static constexpr int COPIERS = L == TRANSPOSED || THREADS % LINE == 0 || LINE % THREADS == 0 ? THREADS : THREADS / 4 * 3;
    static constexpr int PASSES = ROWS * BK / WIDTH / COPIERS;
    static_assert(PASSES * WIDTH * COPIERS == ROWS * BK && PASSES <= 32, "every thread copies alike");
    // How much of a line one pass covers.
    static constexpr int ACROSS = L == TRANSPOSED ? THREADS / 8 : COPIERS;
    static_assert(ACROSS % LINE == 0 || LINE % ACROSS == 0, "passes are uniform");

    const float* src;  // this thread's first element of the next stage
    idx ld;
    unsigned dst;         // its byte offset inside a stage
    unsigned full, tail;  // bit i: pass i is in range, in a whole stage and in the short one

    // Row and k of copy `unit`: the thread's own for its number, pass i's distance from that for i * ACROSS.
    static __device__ __forceinline__ constexpr int row_of(int unit) {
        return L == ROWS_LAST ? unit % LINE * WIDTH : L == TRANSPOSED ? unit % LINE : unit / LINE;
    }
    static __device__ __forceinline__ constexpr int k_of(int unit) {
        return L == ROWS_LAST ? unit / LINE : L == TRANSPOSED ? unit / LINE * 8 : unit % LINE * WIDTH;
    }
    static __device__ __forceinline__ constexpr int at(int row, int k) {
        if (PAIRS) return row * PITCH + ((k >> 2 ^ (row & 3) << 1) << 2 | (k & 3));
        return L == K_LAST ? row * PITCH + k : k * PITCH + row;
    }

    // Points at the tile of rows row0 .. and k0 .. of `base`; the short stage has k_left steps.
    __device__ __forceinline__ void start(const float* base, idx ld_, idx row0, idx rows, idx k0, idx k_left,
                                          int tid) {
        const int unit = L == TRANSPOSED ? tid >> 3 : tid;
        const int row = row_of(unit), k = k_of(unit) + (L == TRANSPOSED ? tid & 7 : 0);
        ld = ld_;
        src = base + (L == ROWS_LAST ? (i64)(k0 + k) * ld + row0 + row : (i64)(row0 + row) * ld + k0 + k);
        dst = at(row, k) * 4;
        full = tail = 0;
#pragma unroll
        for (int i = 0; i < PASSES; ++i) {
            const bool in = (COPIERS == THREADS || tid < COPIERS) && row + row_of(i * ACROSS) < rows - row0;
            full |= (unsigned)in << i;
            tail |= (unsigned)(in && k + k_of(i * ACROSS) < k_left) << i;
        }
    }
    // Starts passes from .. to of the next stage, to shared address `stage`.
    __device__ __forceinline__ void fetch(unsigned stage, unsigned mask, int from, int to) {
#pragma unroll
        for (int i = 0; i < PASSES; ++i) {
            if (i < from || i >= to) continue;
            const int dr = row_of(i * ACROSS), dk = k_of(i * ACROSS);
            const i64 step = L == ROWS_LAST ? (i64)ld * dk + dr : (i64)ld * dr + dk;
            copy<WIDTH>(stage + dst + at(dr, dk) * 4, src + step, mask, i);
        }
        if (to == PASSES) src += L == ROWS_LAST ? (i64)ld * BK : (i64)BK;
    }

    // The T values of a thread (first row `s` points at, lanes V apart) for COUNT steps from k on.
    template <int COUNT, int V, int LANES>
    static __device__ __forceinline__ void read(float (&f)[COUNT][T], const float* s, int k) {
        if (L == K_LAST) {
            constexpr int W = COUNT < 4 ? 1 : 4;
#pragma unroll
            for (int i = 0; i < T; ++i)
#pragma unroll
                for (int q = 0; q < COUNT; q += W) {
                    Vec<W> v = *(const Vec<W>*)(s + i * LANES * PITCH + k + q);
#pragma unroll
                    for (int e = 0; e < W; ++e) f[q + e][i] = v.v[e];
                }
        } else {
#pragma unroll
            for (int q = 0; q < COUNT; ++q)
#pragma unroll
                for (int i = 0; i < T; i += V) {
                    Vec<V> v = *(const Vec<V>*)(s + (k + q) * PITCH + i * LANES);
#pragma unroll
                    for (int e = 0; e < V; ++e) f[q][i + e] = v.v[e];
                }
        }
    }
#if DITTO_TF32
    // The T values of a thread (first row `s` points at, lanes V apart) for its two of the 8 steps from k on.
    template <int V> static __device__ __forceinline__ void share(float (&f)[2][T], const float* s, int k) {
        constexpr int LANES = 8;
        const int g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;
        if (PAIRS) {
            s += (k ^ (g & 3) << 3) + 2 * t;
#pragma unroll
            for (int i = 0; i < T; ++i) {
                const Vec<2> v = *(const Vec<2>*)(s + i * LANES * PITCH);
                f[0][i] = v.v[0];
                f[1][i] = v.v[1];
            }
        } else {
#pragma unroll
            for (int q = 0; q < 2; ++q)
#pragma unroll
                for (int i = 0; i < T; i += V) {
                    const int step = k + 4 * q + t;
                    const Vec<V> v = *(const Vec<V>*)(L == K_LAST ? s + i * LANES * PITCH + step : s + step * PITCH + i * LANES);
#pragma unroll
                    for (int e = 0; e < V; ++e) f[q][i + e] = v.v[e];
                }
        }
    }
#endif
};

// One k step: every accumulator takes one fused multiply-add. Which comes first matters to no result; back
// and forth along the inner axis, the operand at the turn is read once (which axis is inner: measured).
__device__ __forceinline__ void step(float (&acc)[TM][TN], const float (&fa)[TM], const float (&fb)[TN]) {
    constexpr bool COLUMNS = TN > 8;
    constexpr int OUTER = COLUMNS ? TN : TM, INNER = COLUMNS ? TM : TN;
#pragma unroll
    for (int x = 0; x < OUTER; ++x) {
#pragma unroll
        for (int y0 = 0; y0 < INNER; ++y0) {
            const int y = x & 1 ? INNER - 1 - y0 : y0, i = COLUMNS ? y : x, j = COLUMNS ? x : y;
            acc[i][j] = __fmaf_rn(fa[i], fb[j], acc[i][j]);
        }
    }
}

typedef Tile<BM, TM, LA, DITTO_VA != 0> TileA;
#if DITTO_TF32
typedef Tile<BN, TB, LB, DITTO_VB != 0> TileB;
#else
typedef Tile<BN, TN, LB, DITTO_VB != 0> TileB;
#endif

// How far a thread's i-th row and j-th column are from its first.
__device__ __forceinline__ constexpr int row_at(int i) { return i / VM * (LM * VM) + i % VM; }
__device__ __forceinline__ constexpr int col_at(int j) { return j / VN * (LN * VN) + j % VN; }

// Where a thread's accumulators lie in the matrix.
struct Place {
    float* out;  // its first output
    const float* bias;
    idx ldc;
    idx rows, cols;  // how many rows and columns are left from there
#if DITTO_EPILOGUE
    const float* whole;  // where the result starts
    const Epilogue* epilogue;
#endif
};

#if DITTO_EPILOGUE
// Makes results of sums that nothing else is needed for; those but the first are written, if `in`.
template <int W>
__device__ __forceinline__ void epilogue_here(Vec<W>& v, i64 at, const Epilogue* f, unsigned in) {
    Vec<W> more[EPILOGUE_Y > 1 ? EPILOGUE_Y - 1 : 1];
#pragma unroll
    for (int e = 0; e < W; ++e) {
        float from[EPILOGUE_X + 1] = {v.v[e]}, to[EPILOGUE_Y];
        epilogue(from, to);
        v.v[e] = to[0];
#pragma unroll
        for (int k = 1; k < EPILOGUE_Y; ++k) more[k - 1].v[e] = to[k];
    }
#pragma unroll
    for (int k = 1; k < EPILOGUE_Y; ++k) store_if(more[k - 1], f->y[k - 1] + at, in);
}
#endif

// Adds the accumulators to what earlier chunks left in the output, then, after the last chunk, the bias,
// and writes the sum. What is absent (an earlier chunk, a bias) is -0.0, which changes no bit of a sum.
// Row i + BATCH is loaded before row i is written, so that several loads are on their way together, unless that takes
// registers which the multiplications miss.
__device__ __forceinline__ void store(const float (&acc)[TM][TN], const Place& at, bool first, bool last) {
    constexpr int W = DITTO_VC ? (VN < 4 ? VN : 4) : 1, COLS = TN / W, BATCH = TM < 2 || (DITTO_CONV && TM * TN > 96) ? 1 : 2;
    unsigned cols = 0;  // bit c: group c of the columns is in the matrix
#pragma unroll
    for (int c = 0; c < COLS; ++c) cols |= (unsigned)(col_at(c * W) < at.cols) << c;
    Vec<W> old[BATCH][COLS], add[COLS];
#pragma unroll
    for (int c = 0; c < COLS; ++c) {
#pragma unroll
        for (int e = 0; e < W; ++e) add[c].v[e] = -0.0f;
        if (DITTO_BIAS) load_if(add[c], at.bias + col_at(c * W), last ? cols & 1u << c : 0);
    }
#pragma unroll
    for (int i = 0; i < TM + BATCH; ++i) {
        if (i >= BATCH) {
            const int r = i - BATCH;
            float* line = at.out + (i64)row_at(r) * at.ldc;
            const unsigned in = row_at(r) < at.rows ? cols : 0;
#pragma unroll
            for (int c = 0; c < COLS; ++c) {
                Vec<W> v = old[r % BATCH][c];
#pragma unroll
                for (int e = 0; e < W; ++e) {
                    v.v[e] = finish(__fadd_rn(v.v[e], acc[r][c * W + e]), add[c].v[e]);
                }
#if DITTO_EPILOGUE
                if (last) epilogue_here<W>(v, line + col_at(c * W) - at.whole, at.epilogue, in & 1u << c);
#endif
                store_if(v, line + col_at(c * W), in & 1u << c);
            }
        }
        if (i < TM) {
            const float* line = at.out + (i64)row_at(i) * at.ldc;
            const unsigned in = !first && row_at(i) < at.rows ? cols : 0;
#pragma unroll
            for (int c = 0; c < COLS; ++c) {
                Vec<W>& v = old[i % BATCH][c];
#pragma unroll
                for (int e = 0; e < W; ++e) v.v[e] = -0.0f;
                load_if(v, line + col_at(c * W), in & 1u << c);
            }
        }
    }
}

// Where a thread's outputs lie: its first row and column inside its block's tile, and the tile's in the result.
//
// A block owns a BM x BN tile of the output; its WM x WN warps own 8 TM x 4 TN of it each, a thread TM x TN:
// groups of VM x VN neighbours, 8 VM apart along m and 4 VN along n. The bits of the lane number alternate
// between m and n, so that a 16-byte shared load of either operand has equal addresses in lanes 1 (B) or 2 (A)
// apart and costs 2 cycles of shared memory instead of 4 (measured). blockIdx.x: the tile, 8 tile rows at a
// time column by column.
struct Origin {
    int tm, tn;
    idx row0, col0;

    __device__ __forceinline__ Origin(i64 m, i64 n) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#if DITTO_TF32
        const int lm = lane >> 2, ln = lane & 3;
#else
        const int lm = (lane & 1) | (lane >> 1 & 2) | (lane >> 2 & 4), ln = (lane >> 1 & 1) | (lane >> 2 & 2);
#endif
        tm = warp % DITTO_WM * (LM * TM) + lm * VM;
        tn = warp / DITTO_WM * (LN * TN) + ln * VN;
        const unsigned tiles_m = (unsigned)((m + BM - 1) / BM), tiles_n = (unsigned)((n + BN - 1) / BN);
        const unsigned band = blockIdx.x / (BAND * tiles_n), in_band = blockIdx.x % (BAND * tiles_n);
        const unsigned height = min(tiles_m - band * BAND, (unsigned)BAND);
        row0 = (idx)(band * BAND + in_band % height) * BM;
        col0 = (idx)(in_band / height) * BN;
    }
};

// The sums of a tile on their way through shared memory, PART rows of each thread at a time, so that neighbouring threads
// then have neighbouring results. ROOM: words of it, which nobody needs any more.
template <int ROOM> struct Spread {
    static constexpr int PITCH = BN + 4;
    static constexpr int PART = BM * PITCH <= ROOM ? TM : BM * PITCH / 2 <= ROOM ? TM / 2 : BM * PITCH / 4 <= ROOM ? TM / 4 : TM / 8;
    static_assert(PART > 0 && BM / TM * PART * PITCH <= ROOM, "a row of every thread fits");
    static constexpr int PARTS = TM / PART, LINES = BM / TM * PART, W = VN < 4 ? VN : 4;

    // Writes a part, for all threads to read.
    static __device__ __forceinline__ void write(float* shared, const float (&acc)[TM][TN], const Origin& o, int part) {
        const int line = o.tm / (LM * TM) * LM + o.tm % (LM * TM) / VM;  // of the threads along m
        // Added to the sums, changes none of them: otherwise four neighbours would have to be in neighbouring registers
        // from the start, in the same bank as the operands they are made of, which costs a tenth of the multiplications.
        float none = -0.0f;
        hide(none);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PART; ++i) {
            float* to = shared + (line * PART + i) * PITCH + o.tn;
#pragma unroll
            for (int j = 0; j < TN; j += W) {
                Vec<W> v;
#pragma unroll
                for (int e = 0; e < W; ++e) v.v[e] = __fadd_rn(acc[part * PART + i][j + e], none);
                *(Vec<W>*)(to + col_at(j)) = v;
            }
        }
        __syncthreads();
    }
    // The row of the tile that is line q of a part.
    static __device__ __forceinline__ int row(int q, int part) {
        const int l = q / PART, i = part * PART + q % PART;
        return l / LM * (LM * TM) + l % LM * VM + row_at(i);
    }
};

#if DITTO_EPILOGUE && EPILOGUE_TILE

// Where a result lies: whether there is one, its place in the whole result, its column, and its bias, if it has one.
struct Spot {
    bool in;
    i64 place, column;
    const float* bias;
};

// Ends a tile with the program that follows, spread over the threads: what else the program reads and what it writes are
// whole lines, and its code stands in the kernel once.
//
// where(row, col): the spot of a result of the tile; with DITTO_VC four neighbours from a multiple of 4 on are neighbours
// in the result. `first`: no earlier chunk is in the result.
template <int ROOM, class Where>
__device__ __forceinline__ void epilogue_tile(float* shared, const float (&acc)[TM][TN], const Origin& o, Where&& where,
                                            float* out, bool first, const Epilogue& f) {
    typedef Spread<ROOM> spread;
    constexpr int W = DITTO_VC ? 4 : 1, GROUPS = spread::LINES * (BN / W), EACH = (GROUPS + THREADS - 1) / THREADS;
    // A thread reads for several groups before it computes one, as far as there are registers beside the sums of other parts.
    constexpr int MOST = TM * TN > 96 ? 1 : EPILOGUE_X > 2 ? 2 : 4, BATCH = EACH < MOST ? EACH : MOST;
#pragma unroll
    for (int part = 0; part < spread::PARTS; ++part) {
        spread::write(shared, acc, o, part);
#pragma unroll 1
        for (int from = threadIdx.x; from < GROUPS; from += BATCH * THREADS) {
            Spot spot[BATCH];
            Extras<W> extras[BATCH];
            Vec<W> old[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                const int g = from + b * THREADS;
                spot[b] = where(spread::row(g / (BN / W), part), g % (BN / W) * W);
                spot[b].in = spot[b].in && g < GROUPS;
                if (!spot[b].in) continue;
                extras[b].load(f, spot[b].place, spot[b].column);
                if (!first) old[b] = *(const Vec<W>*)(out + spot[b].place);
            }
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                if (!spot[b].in) continue;
                const int g = from + b * THREADS;
                Vec<W> v = *(const Vec<W>*)(shared + g / (BN / W) * spread::PITCH + g % (BN / W) * W);
                if (!first) {
#pragma unroll
                    for (int e = 0; e < W; ++e) v.v[e] = __fadd_rn(old[b].v[e], v.v[e]);
                }
                if (spot[b].bias) {
#pragma unroll
                    for (int e = 0; e < W; ++e) v.v[e] = __fadd_rn(v.v[e], spot[b].bias[DITTO_CONV ? 0 : e]);
                }
                extras[b].finish(f, v, spot[b].place);
                *(Vec<W>*)(out + spot[b].place) = v;
            }
        }
    }
}

#endif

#if DITTO_TF32

// On tensor cores: as `product` below, but for the order of sums. Which rows, columns and steps of the tile those of an
// instruction (see `mma`) are is free: rows and columns are those that `row_at` and `col_at` say of the results, steps are as
// they are, or 2 t and 2 t + 1.
// Shared memory: rows are 4 mod 32 or 8 mod 32 words apart, or (with PAIRS) 16-byte groups are exchanged, so that the
// loads of a warp meet all banks. Operands are loaded 8 steps ahead.
template <class A, class B, class Store>
__device__ __forceinline__ void product(float* shared, A& ta, B& tb, const Origin& o, idx k, Store&& store) {
    constexpr unsigned STAGE = A::SIZE + B::SIZE;  // words
    static_assert(BK % 16 == 0 && (!PAIRS || BK == 32), "pairs of 8 steps, rows of all banks");
    const unsigned ring = (unsigned)__cvta_generic_to_shared(shared);
    const float* const read_a = shared + o.tm * (LA == K_LAST ? A::PITCH : 1);
    const int column = threadIdx.x / 32 / DITTO_WM * (LN * TN) + (threadIdx.x >> 2 & 7) * VB;
    const float* const read_b = shared + A::SIZE + column * (LB == K_LAST ? B::PITCH : 1);
    const idx whole = k / BK, all = (k + BK - 1) / BK;

    auto fetch = [&](idx t, int slot) {
        if (t < all) {
            ta.fetch(ring + slot * STAGE * 4, t < whole ? ta.full : ta.tail, 0, A::PASSES);
            tb.fetch(ring + (slot * STAGE + A::SIZE) * 4, t < whole ? tb.full : tb.tail, 0, B::PASSES);
        }
        copy_commit();
    };
    float acc[TM][TN], fa[2][2][TM], fb[2][2][TB];
    auto round = [&](float (&a)[2][TM], float (&b)[2][TB]) {
#pragma unroll
        for (int q = 0; q < 2; ++q) {
#pragma unroll
            for (int i = 0; i < TM; ++i) a[q][i] = __uint_as_float(tf32(a[q][i]));
#pragma unroll
            for (int i = 0; i < TB; ++i) b[q][i] = __uint_as_float(tf32(b[q][i]));
        }
    };

#pragma unroll 1
    for (int s = 0; s < STAGES - 1; ++s) fetch(s, s);
    copy_wait<STAGES - 2>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) acc[i][j] = 0.0f;
    A::template share<VM>(fa[0], read_a, 0);
    B::template share<VB>(fb[0], read_b, 0);
    round(fa[0], fb[0]);
    int slot = 0;  // of the stage that is read
#pragma unroll 1
    for (idx t = 0; t < all; ++t) {
#pragma unroll
        for (int g = 0; g < BK / 8; ++g) {
            const int now = g & 1, next = now ^ 1;
            // Overwrites stage t - 1, which every thread left before the last barrier.
            if (g == 0) fetch(t + STAGES - 1, slot == 0 ? STAGES - 1 : slot - 1);
            if (g == BK / 8 - 1) {
                // All of stage t is in registers, and stage t + 1 has landed for every thread.
                copy_wait<STAGES - 2>();
                __syncthreads();
                slot = slot == STAGES - 1 ? 0 : slot + 1;
            }
            A::template share<VM>(fa[next], read_a + slot * STAGE, (g + 1) * 8 % BK);
            B::template share<VB>(fb[next], read_b + slot * STAGE, (g + 1) * 8 % BK);
#pragma unroll
            for (int f = 0; f < TB; ++f)
#pragma unroll
                for (int i = 0; i < TM; i += 2) {
                    const int j = f / VB * (2 * VB) + f % VB;
                    auto bits = [](float x) { return __float_as_uint(x); };
                    mma(acc[i][j], acc[i][j + VB], acc[i + 1][j], acc[i + 1][j + VB], bits(fa[now][0][i]), bits(fa[now][0][i + 1]),
                        bits(fa[now][1][i]), bits(fa[now][1][i + 1]), bits(fb[now][0][f]), bits(fb[now][1][f]));
                }
            round(fa[next], fb[next]);
        }
    }
    store(acc, true, true);
    __syncthreads();
}

#else

// Sums k steps of a tile: `ta` and `tb` bring the operands, `store(acc, first, last)` takes the chain of each
// chunk. Every thread of the block calls it; what `shared` held is not needed any more by any of them.
//
// Shared memory: a ring of STAGES x (tile of A, tile of B), each as its Layout says, filled by cp.async
// STAGES - 1 stages ahead; a thread's operands are read one group of G steps ahead.
// Per stage and tile: 4 BK (BM + BN) bytes in, 2 BK BM BN floating-point operations.
template <class A, class B, class Store>
__device__ __forceinline__ void product(float* shared, A& ta, B& tb, const Origin& o, idx k, Store&& store) {
    constexpr unsigned STAGE = (A::SIZE + B::SIZE) * 4;  // bytes
    const unsigned ring = (unsigned)__cvta_generic_to_shared(shared);
    const float* const read_a = shared + A::at(o.tm, 0);
    const float* const read_b = shared + A::SIZE + B::at(o.tn, 0);
    const idx whole = k / BK;           // whole stages
    const idx all = (k + BK - 1) / BK;  // and the short one

    // Starts share `piece` of `pieces` of the copies of stage t; the last one closes the stage's group.
    auto fetch = [&](idx t, unsigned stage, int piece, int pieces) {
        ta.fetch(stage, t < whole ? ta.full : t < all ? ta.tail : 0, A::PASSES * piece / pieces,
                 A::PASSES * (piece + 1) / pieces);
        tb.fetch(stage + A::SIZE * 4, t < whole ? tb.full : t < all ? tb.tail : 0, B::PASSES * piece / pieces,
                 B::PASSES * (piece + 1) / pieces);
        if (piece == pieces - 1) copy_commit();
    };

#pragma unroll 1
    for (int s = 0; s < STAGES - 1; ++s) fetch(s, ring + s * STAGE, 0, 1);
    copy_wait<STAGES - 2>();
    __syncthreads();

    unsigned read = 0, write = (STAGES - 1) * STAGE;  // byte offsets of stages in the ring
    float acc[TM][TN], fa[2][G][TM], fb[2][G][TN];
    A::template read<G, VM, LM>(fa[0], read_a, 0);
    B::template read<G, VN, LN>(fb[0], read_b, 0);
    idx t = 0;
#pragma unroll 1
    for (bool first = true, last = false; !last; first = false) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) acc[i][j] = 0.0f;

        idx stop = t + CHUNK / BK;  // the stage at which this chunk ends
        last = stop >= all;
        stop = last ? whole : stop;
#pragma unroll 1
        for (; t < stop; ++t) {
#pragma unroll
            for (int g = 0; g < BK / G; ++g) {
                const int now = g & 1, next = now ^ 1;
                if (g == BK / G - 1) {
                    // All of stage t is in registers, and stage t + 1 has landed for every thread.
                    copy_wait<STAGES - 2>();
                    __syncthreads();
                    read = read == (STAGES - 1) * STAGE ? 0 : read + STAGE;
                }
                A::template read<G, VM, LM>(fa[next], read_a + read / 4, (g + 1) * G % BK);
                B::template read<G, VN, LN>(fb[next], read_b + read / 4, (g + 1) * G % BK);
                // Overwrites stage t - 1, which every thread left before the last barrier.
                if (g < PIECES) fetch(t + STAGES - 1, ring + write, g, PIECES);
                if (g == PIECES) write = write == (STAGES - 1) * STAGE ? 0 : write + STAGE;
#pragma unroll
                for (int q = 0; q < G; ++q) step(acc, fa[now][q], fb[now][q]);
            }
        }
        if (last) {
            // The short stage: exactly the k that are left, none of the padding.
#pragma unroll 1
            for (int kk = 0; kk < (int)(k - whole * BK); ++kk) {
                float sa[1][TM], sb[1][TN];
                A::template read<1, VM, LM>(sa, read_a + read / 4, kk);
                B::template read<1, VN, LN>(sb, read_b + read / 4, kk);
                step(acc, sa[0], sb[0]);
            }
        }
        store(acc, first, last);
    }
    __syncthreads();
}

#endif

#if !DITTO_CONV

// The product.
//
// Thread mapping: see Origin; blockIdx.z: batch * part (grid-stride). Shared memory: see product.
// Order of summation: see the head of this file; an accumulator is one chunk's chain. At the end of a
// chunk it is added to what the output holds (every output belongs to one thread), or, when the chunks
// run in blocks of their own (`slice` = CHUNK), stored as a part for `ditto_matmul_reduce`.
//
// a, b: operands, dense within a product; batch z starts at z * stride_a, z * stride_b (0: shared).
// out: [parts][batch][m][n], parts = ceil(k / slice); bias: [n], read only with DITTO_BIAS and one part.
// slice: how much of k one block does: k (one part), or CHUNK. m, n, k: below 2^31 - 4096 unless DITTO_LONG.
extern "C" __global__ void __launch_bounds__(THREADS, DITTO_BLOCKS)
ditto_matmul(const float* __restrict__ a, const float* __restrict__ b, float* out,
             const float* __restrict__ bias, i64 m_, i64 n_, i64 k_, i64 batch, i64 stride_a, i64 stride_b,
             i64 slice, i64 parts EPILOGUE_PARAM) {
    [[maybe_unused]] constexpr int ROOM = STAGES * (TileA::SIZE + TileB::SIZE);
#if DITTO_TF32
    extern __shared__ __align__(16) float shared[];
#else
    __shared__ __align__(16) float shared[ROOM];
#endif
    const idx m = (idx)m_, n = (idx)n_;
    const Origin o(m_, n_);

    for (i64 z = blockIdx.z; z < batch * parts; z += gridDim.z) {
        const i64 part = z / batch, item = z - part * batch;
        const idx k0 = (idx)(part * slice);
        const idx k = (idx)min(slice, k_ - part * slice);

        TileA ta;
        TileB tb;
        ta.start(a + item * stride_a, DITTO_TA ? m : (idx)k_, o.row0, m, k0, k % BK, threadIdx.x);
        tb.start(b + item * stride_b, DITTO_TB ? (idx)k_ : n, o.col0, n, k0, k % BK, threadIdx.x);

        Place at;
        at.ldc = n;
        at.out = out + z * ((i64)m_ * n_) + (i64)(o.row0 + o.tm) * n + o.col0 + o.tn;
        at.rows = m - o.row0 - o.tm;
        at.cols = n - o.col0 - o.tn;
        at.bias = bias + o.col0 + o.tn;
#if DITTO_EPILOGUE
        at.whole = out;
        at.epilogue = &epilogue_with;
#endif
        product(shared, ta, tb, o, k, [&](const float (&acc)[TM][TN], bool first, bool last) {
#if DITTO_EPILOGUE && EPILOGUE_TILE
            if (last) {
                const i64 before = item * ((i64)m_ * n_);
                epilogue_tile<ROOM>(shared, acc, o, [&](int row, int col) {
                    const i64 r = (i64)o.row0 + row, c = (i64)o.col0 + col;
                    const bool in = r < m && c < n;
                    return Spot{in, before + r * n + c, c, DITTO_BIAS && in ? bias + c : nullptr};
                }, out, first, epilogue_with);
                return;
            }
#endif
            store(acc, at, first, last);
        });
    }
}

#endif  // !DITTO_CONV

#endif
