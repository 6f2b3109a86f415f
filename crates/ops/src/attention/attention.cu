// Scaled dot-product attention, forward and backward, with the bits of the CPU.
//
// This text is compiled behind `#define` lines that pick one variant:
//   DITTO_KIND        0: forward; 1: backward; 2: the row products of the backward pass; 3: masks
//   DITTO_D, _DV      size of queries and keys, and of values
//   DITTO_TR          rows of a thread: 4, 2 or 1
//   DITTO_WARPS       warps of a block, each with 8 TR rows of its own
//   DITTO_SB          queries of a stage of the backward pass: 32, 16 or 8
//   DITTO_SHARE       1: keys and values take turns in one buffer (forward, little shared memory)
//   DITTO_BLOCKS      blocks per multiprocessor the registers are budgeted for
//   DITTO_MASK        1: there is a mask
//   DITTO_INSIDE      1: lists are heads that lie inside the rows of a linear layer: queries, keys and values are (..., n, 3, heads,
//                     D), outputs (..., n, heads, D); there is no mask, no head is shared, and what there is per row is by lists
//   DITTO_TF32        1: tensor cores multiply; D and DV are multiples of 8, TR of 2, SB of 16
//   DITTO_FLIP        1: the scale is negative, and scores are the negative products
//   CHUNK             rows or keys of one chain of the gradients
//   BLOCK             keys of a block of the online softmax, queries of a block of the gradients
//
// A block owns DITTO_WARPS * 8 * TR rows ("own") and walks over the other side in stages ("streamed"). Lane
// (lm, ln) of a warp, 8 by 4, has own rows lm + 8 i and streamed rows ln + 4 j, so whatever is needed of a pair
// is in one warp: weights go from the layout of scores to that of products through shared memory that only
// their warp touches. Lanes alternate between lm and ln, so that 16-byte shared loads of either side cost half.
//
// Shared tiles are [row][pitch], pitch = 4 mod 16 words, which keeps 16-byte loads along a row and 4-byte
// stores of 8 by 4 pairs free of bank conflicts. Rows beyond the end hold stale words; pairs with them are
// blocked, or their results are not stored. A blocked pair takes no part in any sum, whatever its operands hold.
//
// On tensor cores an instruction multiplies 16 rows by 8 columns over 8 steps; lane (g, t), 8 by 4, has of the left rows
// g and g + 8 and of the right column g, both for two steps, and gets columns 2 t and 2 t + 1 of rows g and g + 8. So own
// rows are lm + 8 i as before, streamed rows and columns of results come in pairs, and weights stay in registers: as
// results of one product they lie as the next one takes its left side, if a lane's two steps are rows 2 t and 2 t + 1.
// Blocked pairs have weight 0 there, and rows beyond the end are zeros.

typedef unsigned long long u64;

#ifndef DITTO_TF32
#define DITTO_TF32 0
#endif

#ifndef DITTO_INSIDE
#define DITTO_INSIDE 0
#endif

#ifdef DITTO_FLIP
#define SCORE(x) (-(x))
#else
#define SCORE(x) (x)
#endif

#define BLOCKED 0xff800001u
#define LOG2E __uint_as_float(0x3fb8aa3bu)

#if DITTO_KIND <= 1

constexpr int D = DITTO_D, DV = DITTO_DV, TR = DITTO_TR, WARPS = DITTO_WARPS, THREADS = 32 * WARPS;
constexpr int OWN = WARPS * 8 * TR;
__device__ constexpr int wide(int d) { return d < 1 ? 1 : (d + 15) / 16; }  // columns of a thread, in fours
constexpr int NCD = wide(D), NCV = wide(DV), PD = 16 * NCD + 4, PV = 16 * NCV + 4;

// How a mask is read; see the host's twin.
struct MaskView {
    u64 dims[8], strides[8], row, column;
};

// How lists lie inside rows: heads, and words from row to row of queries, of outputs, and of chains of dq under way.
struct Inside {
    unsigned heads, wide, narrow, chains;
};

// Where list z starts whose rows are `apart` words from each other.
template <int W> __device__ __forceinline__ u64 list_at(u64 z, unsigned n, unsigned heads, unsigned apart) {
    return (u64)((unsigned)z / heads * n) * apart + (unsigned)z % heads * W;
}

// Where the mask of row r of list z starts.
__device__ __forceinline__ u64 mask_at(const MaskView& view, u64 z, unsigned group, unsigned n, unsigned r) {
    u64 head = z * group + r / n, at = (r % n) * view.row;
#pragma unroll
    for (int a = 7; a >= 0 && head > 0; --a) {
        at += head % view.dims[a] * view.strides[a];
        head /= view.dims[a];
    }
    return at;
}

// Smallest and largest query index of rows from .. from + count - 1.
__device__ __forceinline__ void query_range(unsigned n, unsigned from, unsigned count, int& low, int& high) {
    const unsigned last = from + count - 1;
    if (DITTO_INSIDE) {
        low = (int)from;
        high = (int)last;
        return;
    }
    const bool one = from / n == last / n;
    low = one ? (int)(from % n) : 0;
    high = one ? (int)(last % n) : (int)n - 1;
}

__device__ __forceinline__ bool is_blocked(float x) { return __float_as_uint(x) == BLOCKED; }

// Query index of a row.
__device__ __forceinline__ int query_of(unsigned row, unsigned n) { return (int)(DITTO_INSIDE ? row : row % n); }

// Starts copying `rows` rows of W floats, `apart` from each other, into a tile of the given pitch; on tensor cores, zeros into
// the rest of its TILE rows.
template <int W, int PITCH, int TILE> __device__ __forceinline__ void copy_rows(float* tile, const float* from, unsigned apart, int rows) {
    constexpr bool VECTOR = W % 4 == 0;
    constexpr int PER = VECTOR ? W / 4 : W;
    if (PER == 0) return;
    const unsigned to = (unsigned)__cvta_generic_to_shared(tile);
    for (int u = threadIdx.x; u < (DITTO_TF32 ? TILE : rows) * PER; u += THREADS) {
        const int r = u / (PER > 0 ? PER : 1), c = u - r * PER;
        const int each = VECTOR ? 4 : 1;
        const u64 at = DITTO_INSIDE ? (u64)(unsigned)(DITTO_TF32 && r >= rows ? 0 : r) * apart + each * c : each * (u64)(DITTO_TF32 && r >= rows ? 0 : u);
        if (DITTO_TF32)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + (r * PITCH + 4 * c) * 4), "l"(from + at), "r"(r < rows ? 16 : 0) : "memory");
        else if (VECTOR)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + (r * PITCH + 4 * c) * 4), "l"(from + at) : "memory");
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + (r * PITCH + c) * 4), "l"(from + at) : "memory");
    }
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

__device__ __forceinline__ void four(float (&to)[4], const float* from) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x; to[1] = v.y; to[2] = v.z; to[3] = v.w;
}

// The lane's place among the 8 by 4 lanes of a warp.
__device__ __forceinline__ int lane_m() {
    const int lane = threadIdx.x & 31;
    return DITTO_TF32 ? lane >> 2 : (lane & 1) | (lane >> 1 & 2) | (lane >> 2 & 4);
}
__device__ __forceinline__ int lane_n() {
    const int lane = threadIdx.x & 31;
    return DITTO_TF32 ? lane & 3 : (lane >> 1 & 1) | (lane >> 2 & 2);
}
// Lane numbers that differ in one bit of ln.
#define FAR (DITTO_TF32 ? 2 : 8)
#define NEAR (DITTO_TF32 ? 1 : 2)
#define ALL 0xffffffffu

// The j-th streamed row of a thread.
__device__ __forceinline__ int streamed(int ln, int j) { return DITTO_TF32 ? j / 2 * 8 + 2 * ln + j % 2 : ln + 4 * j; }
// The c-th column of a thread's results.
__device__ __forceinline__ int column_of(int ln, int c) { return DITTO_TF32 ? c / 2 * 8 + 2 * ln + c % 2 : 16 * (c / 4) + 4 * ln + c % 4; }

#if DITTO_TF32

__device__ __forceinline__ float weight(float x) {
    float w;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(w) : "f"(x));
    return w;
}

// s[i][j] = own row i times streamed row j. `a` points at the thread's first row, `b` at the streamed tile.
template <int W, int PITCH, int NB> __device__ __forceinline__ void products(float (&s)[TR][NB], const float* a, const float* b) {
#pragma unroll
    for (int i = 0; i < TR; ++i)
#pragma unroll
        for (int j = 0; j < NB; ++j) s[i][j] = 0.0f;
    a += lane_n();
    b += lane_m() * PITCH + lane_n();
#pragma unroll 2
    for (int k = 0; k < W; k += 8) {
        unsigned x[TR][2];
#pragma unroll
        for (int i = 0; i < TR; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) x[i][h] = tf32(a[i * 8 * PITCH + k + 4 * h]);
#pragma unroll
        for (int f = 0; f < NB; f += 2) {
            const unsigned y0 = tf32(b[f * 4 * PITCH + k]), y1 = tf32(b[f * 4 * PITCH + k + 4]);
#pragma unroll
            for (int i = 0; i < TR; i += 2)
                mma(s[i][f], s[i][f + 1], s[i + 1][f], s[i + 1][f + 1], x[i][0], x[i + 1][0], x[i][1], x[i + 1][1], y0, y1);
        }
    }
}

// acc[i][c] += weight of (own row i, streamed row j) times column c of streamed row j, for all j.
template <int PITCH, int NC, int NB> __device__ __forceinline__ void accumulate(float (&acc)[TR][4 * NC], const float (&w)[TR][NB], const float* b) {
    b += 2 * lane_n() * PITCH + lane_m();
#pragma unroll
    for (int f = 0; f < NB; f += 2) {
        unsigned x[TR][2];
#pragma unroll
        for (int i = 0; i < TR; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) x[i][h] = tf32(w[i][f + h]);
#pragma unroll
        for (int c = 0; c < 4 * NC; c += 2) {
            const unsigned y0 = tf32(b[f * 4 * PITCH + c * 4]), y1 = tf32(b[(f * 4 + 1) * PITCH + c * 4]);
#pragma unroll
            for (int i = 0; i < TR; i += 2)
                mma(acc[i][c], acc[i][c + 1], acc[i + 1][c], acc[i + 1][c + 1], x[i][0], x[i + 1][0], x[i][1], x[i + 1][1], y0, y1);
        }
    }
}

#else

__device__ __forceinline__ float weight(float x) { return ditto_weight(x); }

// Streamed rows that are multiplied at a time, so that a sum is not needed again before it is there.
constexpr int JP = 2;

// s[i][j] = own row i times streamed row j: a chain over the W columns, increasing, from +0. `a` points at the
// thread's first row, `b` at the streamed tile. Operands are loaded one step ahead.
template <int W, int PITCH, int NB> __device__ __forceinline__ void products(float (&s)[TR][NB], const float* a, const float* b) {
    b += lane_n() * PITCH;
#pragma unroll
    for (int i = 0; i < TR; ++i)
#pragma unroll
        for (int j = 0; j < NB; ++j) s[i][j] = 0.0f;
    constexpr int WHOLE = W / 4 * 4, PAIRS = NB / JP;
    float x[TR][4], y[JP][4];
    if (WHOLE > 0) {
#pragma unroll
        for (int i = 0; i < TR; ++i) four(x[i], a + i * 8 * PITCH);
#pragma unroll
        for (int h = 0; h < JP; ++h) four(y[h], b + h * 4 * PITCH);
    }
#pragma unroll 2
    for (int c = 0; c < WHOLE; c += 4) {
        float nx[TR][4];
#pragma unroll
        for (int j = 0; j < PAIRS; ++j) {
            float ny[JP][4];
            // What is loaded after the last columns is inside the tile's pitch and not used.
#pragma unroll
            for (int h = 0; h < JP; ++h) four(ny[h], j + 1 < PAIRS ? b + ((j + 1) * JP + h) * 4 * PITCH + c : b + h * 4 * PITCH + c + 4);
            if (j == PAIRS - 1)
#pragma unroll
                for (int i = 0; i < TR; ++i) four(nx[i], a + i * 8 * PITCH + c + 4);
#pragma unroll
            for (int e = 0; e < 4; ++e)
#pragma unroll
                for (int h = 0; h < JP; ++h)
#pragma unroll
                    for (int i = 0; i < TR; ++i) s[i][j * JP + h] = __fmaf_rn(x[i][e], y[h][e], s[i][j * JP + h]);
#pragma unroll
            for (int h = 0; h < JP; ++h)
#pragma unroll
                for (int e = 0; e < 4; ++e) y[h][e] = ny[h][e];
        }
#pragma unroll
        for (int i = 0; i < TR; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) x[i][e] = nx[i][e];
    }
#pragma unroll
    for (int c = WHOLE; c < W; ++c)
#pragma unroll
        for (int i = 0; i < TR; ++i)
#pragma unroll
            for (int j = 0; j < NB; ++j) s[i][j] = __fmaf_rn(a[i * 8 * PITCH + c], b[j * 4 * PITCH + c], s[i][j]);
}

// acc[i][c] += weight of (own row i, streamed row t) times column c of streamed row t, for t increasing: fused
// chains. Columns of a thread: 16 q + 4 ln + e. With SOME, blocked pairs are left out.
template <bool SOME, int PITCH, int NC, int STAGE, int PP>
__device__ __forceinline__ void accumulate(float (&acc)[TR][4 * NC], const float* p, const float* b) {
    float w[TR][4], y[4];
#pragma unroll
    for (int i = 0; i < TR; ++i) four(w[i], p + i * 8 * PP);
    four(y, b);
#pragma unroll 2
    for (int t = 0; t < STAGE; t += 4) {
        float nw[TR][4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
#pragma unroll
            for (int c = 0; c < NC; ++c) {
                float ny[4];
                // Operands of the next step. After the last these are any of the tile, and words between its rows.
                const int u = e * NC + c + 1, row = u < 4 * NC ? t + u / NC : t + 4 < STAGE ? t + 4 : 0;
                four(ny, b + row * PITCH + 16 * (u % NC));
                if (e == 3 && c == 0)
#pragma unroll
                    for (int i = 0; i < TR; ++i) four(nw[i], p + i * 8 * PP + t + 4);
#pragma unroll
                for (int i = 0; i < TR; ++i)
#pragma unroll
                    for (int f = 0; f < 4; ++f)
                        if (!SOME || !is_blocked(w[i][e])) acc[i][4 * c + f] = __fmaf_rn(w[i][e], y[f], acc[i][4 * c + f]);
#pragma unroll
                for (int f = 0; f < 4; ++f) y[f] = ny[f];
            }
#pragma unroll
        for (int i = 0; i < TR; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) w[i][e] = nw[i][e];
    }
}

#endif

// Four columns from `at` on of a row of W floats, past the first-level cache: other blocks write and read them too.
template <int W> __device__ __forceinline__ void load_four(float (&x)[4], const float* row, int at) {
    if (W % 4 == 0) {
        if (at < W) {
            const float4 v = __ldcg(reinterpret_cast<const float4*>(row + at));
            x[0] = v.x; x[1] = v.y; x[2] = v.z; x[3] = v.w;
        }
    } else {
#pragma unroll
        for (int f = 0; f < 4; ++f)
            if (at + f < W) x[f] = __ldcg(row + at + f);
    }
}
template <int W> __device__ __forceinline__ void store_four(float* row, const float (&x)[4], int at) {
    if (W % 4 == 0) {
        if (at < W) __stcg(reinterpret_cast<float4*>(row + at), make_float4(x[0], x[1], x[2], x[3]));
    } else {
#pragma unroll
        for (int f = 0; f < 4; ++f)
            if (at + f < W) __stcg(row + at + f, x[f]);
    }
}

// Stores a thread's columns of own row i at `out`.
template <int W, int NC> __device__ __forceinline__ void store_row(float* out, const float (&x)[4 * NC], int ln) {
#if DITTO_TF32
#pragma unroll
    for (int c = 0; c < 4 * NC; c += 2)
        if (column_of(ln, c) < W) *reinterpret_cast<float2*>(out + column_of(ln, c)) = make_float2(x[c], x[c + 1]);
    return;
#endif
#pragma unroll
    for (int c = 0; c < NC; ++c) {
        const int at = 16 * c + 4 * ln;
        if (W % 4 == 0) {
            if (at < W) *reinterpret_cast<float4*>(out + at) = make_float4(x[4 * c], x[4 * c + 1], x[4 * c + 2], x[4 * c + 3]);
        } else {
#pragma unroll
            for (int f = 0; f < 4; ++f)
                if (at + f < W) out[at + f] = x[4 * c + f];
        }
    }
}

#endif

#if DITTO_KIND == 0

constexpr int NB = BLOCK / 4, PP = BLOCK + 4;

// One block of keys of the online softmax: scores become weights, which are stored at p, and what there is so far
// is rescaled. With SOME, blocked pairs stay as they are and count as nothing.
template <bool SOME>
__device__ __forceinline__ void soften(float (&s)[TR][NB], const unsigned (&open)[TR], float (&top)[TR], float (&total)[TR],
                                       float (&acc)[TR][4 * NCV], float* p, float factor) {
#pragma unroll
    for (int i = 0; i < TR; ++i) {
        float best = -__int_as_float(0x7f800000), other;
#pragma unroll
        for (int j = 0; j < NB; ++j) best = s[i][j] > best ? s[i][j] : best;
        other = __shfl_xor_sync(ALL, best, FAR);
        best = other > best ? other : best;
        other = __shfl_xor_sync(ALL, best, NEAR);
        best = other > best ? other : best;
        best = __fadd_rn(best, 0.0f);
        const float next = best > top[i] ? best : top[i];
        float keep = weight(__fmul_rn(__fsub_rn(top[i], next), factor));
        if (SOME) keep = open[i] ? keep : 1.0f;
        top[i] = next;
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < NB; ++j) {
            const float w = weight(__fmul_rn(__fsub_rn(s[i][j], next), factor));
            const bool out = SOME && is_blocked(s[i][j]);
            sum = __fadd_rn(sum, out ? 0.0f : w);
#if DITTO_TF32
            s[i][j] = out ? 0.0f : w;
#else
            p[i * 8 * PP + 4 * j] = out ? s[i][j] : w;
#endif
        }
        sum = __fadd_rn(sum, __shfl_xor_sync(ALL, sum, FAR));
        sum = __fadd_rn(sum, __shfl_xor_sync(ALL, sum, NEAR));
        total[i] = __fmaf_rn(total[i], keep, sum);
#pragma unroll
        for (int c = 0; c < 4 * NCV; ++c) acc[i][c] = __fmul_rn(acc[i][c], keep);
    }
}

// Forward. Per block and 64 keys: 2 * OWN * 64 * 64 fused multiply-adds (D = DV = 64), OWN * 64 exponentials;
// 32 KB of keys and values from the second-level cache. Values are on their way while scores are made, the next
// keys while weights meet values.
extern "C" __global__ void __launch_bounds__(THREADS, DITTO_BLOCKS)
attention_forward(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, const float* __restrict__ mask,
                  float* __restrict__ o, float* __restrict__ logs, float* __restrict__ tops, unsigned batch, unsigned group, unsigned n, unsigned m, unsigned causal,
                  float factor, MaskView view, Inside inside) {
    extern __shared__ float4 memory[];
    float* const sq = reinterpret_cast<float*>(memory);
    float* const sk = sq + OWN * PD;
    float* const sv = DITTO_SHARE ? sk : sk + BLOCK * PD;
    float* const sp = DITTO_SHARE ? sk + BLOCK * (PD > PV ? PD : PV) : sv + BLOCK * PV;
    // From a shuffle, so that the compiler knows it to be one for all lanes.
    const int warp = __shfl_sync(ALL, threadIdx.x >> 5, 0), lm = lane_m(), ln = lane_n();
    const int own0 = warp * 8 * TR;
    const unsigned rows = group * n, tiles = (rows + OWN - 1) / OWN;
    for (u64 work = blockIdx.x; work < (u64)tiles * batch; work += gridDim.x) {
        // The last tiles are the longest under a causal mask; they go first.
        const unsigned tile = tiles - 1 - (unsigned)(work / batch);
        const u64 z = work % batch;
        const unsigned r0 = tile * OWN;
        const int count = rows - r0 < OWN ? (int)(rows - r0) : OWN;
        const u64 row0 = z * rows + r0;
#if DITTO_INSIDE
        const u64 list = list_at<D>(z, n, inside.heads, inside.wide);
        auto query_at = [&](int r) { return list + (u64)(r0 + r) * inside.wide; };
        auto key_at = [&](int j) { return list + (u64)(unsigned)j * inside.wide; };
        auto value_at = key_at;
        auto out_at = [&](int r) { return list_at<DV>(z, n, inside.heads, inside.narrow) + (u64)(r0 + r) * inside.narrow; };
#else
        auto query_at = [&](int r) { return (row0 + r) * D; };
        auto key_at = [&](int j) { return (z * m + j) * D; };
        auto value_at = [&](int j) { return (z * m + j) * DV; };
        auto out_at = [&](int r) { return (row0 + r) * DV; };
#endif
        int low, high, warp_low = 0, warp_high = -1;
        query_range(n, r0, count, low, high);
        const int mine = count - own0 < 8 * TR ? count - own0 : 8 * TR;  // this warp's rows
        if (mine > 0) query_range(n, r0 + own0, mine, warp_low, warp_high);
        const int keys = causal && high + 1 < (int)m ? high + 1 : (int)m;

        float acc[TR][4 * NCV], top[TR], total[TR];
        int query[TR];
        u64 at[TR];
#pragma unroll
        for (int i = 0; i < TR; ++i) {
            const unsigned r = r0 + own0 + lm + 8 * i;
            query[i] = query_of(r, n);
            at[i] = DITTO_MASK && r < rows ? mask_at(view, z, group, n, r) : 0;
            top[i] = -__int_as_float(0x7f800000);
            total[i] = 0.0f;
#pragma unroll
            for (int c = 0; c < 4 * NCV; ++c) acc[i][c] = 0.0f;
        }
        copy_rows<D, PD, OWN>(sq, q + query_at(0), inside.wide, count);
        if (keys > 0) copy_rows<D, PD, BLOCK>(sk, k + key_at(0), inside.wide, (int)m < BLOCK ? (int)m : BLOCK);
        copy_commit();
        for (int j0 = 0; j0 < keys; j0 += BLOCK) {
            const int here = (int)m - j0 < BLOCK ? (int)m - j0 : BLOCK;
            copy_wait<0>();
            __syncthreads();
            if (!DITTO_SHARE) {
                copy_rows<DV, PV, BLOCK>(sv, v + value_at(j0), inside.wide, here);
                copy_commit();
            }
            const bool active = mine > 0 && (!causal || j0 <= warp_high);
            const bool some = DITTO_MASK || here < BLOCK || (causal && j0 + BLOCK > warp_low + 1);
            float s[TR][NB];
            if (active) {
                products<D, PD, NB>(s, sq + (own0 + lm) * PD, sk);
#pragma unroll
                for (int i = 0; i < TR; ++i)
#pragma unroll
                    for (int j = 0; j < NB; ++j) s[i][j] = SCORE(s[i][j]);
                unsigned open[TR];
#pragma unroll
                for (int i = 0; i < TR; ++i) open[i] = some ? 0u : 1u;
                if (some) {
#pragma unroll
                    for (int i = 0; i < TR; ++i) {
                        const bool row = own0 + lm + 8 * i < count;
#pragma unroll
                        for (int j = 0; j < NB; ++j) {
                            const int key = j0 + streamed(ln, j);
                            bool ok = key < (int)m && (!causal || key <= query[i]);
                            if (DITTO_MASK && ok && row) ok = fabsf(mask[at[i] + key * view.column]) > 0.0f;
                            if (!ok) s[i][j] = __uint_as_float(BLOCKED);
                            open[i] |= ok ? 1u : 0u;
                        }
                        open[i] |= __shfl_xor_sync(ALL, open[i], FAR);
                        open[i] |= __shfl_xor_sync(ALL, open[i], NEAR);
                    }
                }
                float* const p = sp + (own0 + lm) * PP + ln;
                if (some)
                    soften<true>(s, open, top, total, acc, p, factor);
                else
                    soften<false>(s, open, top, total, acc, p, factor);
            }
            if (DITTO_SHARE) {
                __syncthreads();
                copy_rows<DV, PV, BLOCK>(sv, v + value_at(j0), inside.wide, here);
                copy_commit();
            }
            copy_wait<0>();
            __syncthreads();
            const int next0 = j0 + BLOCK;
            if (!DITTO_SHARE && next0 < keys) copy_rows<D, PD, BLOCK>(sk, k + key_at(next0), inside.wide, (int)m - next0 < BLOCK ? (int)m - next0 : BLOCK);
            copy_commit();
            if (active) {
#if DITTO_TF32
                accumulate<PV, NCV, NB>(acc, s, sv);
#else
                const float* const p = sp + (own0 + lm) * PP;
                if (some)
                    accumulate<true, PV, NCV, BLOCK, PP>(acc, p, sv + 4 * ln);
                else
                    accumulate<false, PV, NCV, BLOCK, PP>(acc, p, sv + 4 * ln);
#endif
            }
            if (DITTO_SHARE && next0 < keys) {
                __syncthreads();
                copy_rows<D, PD, BLOCK>(sk, k + key_at(next0), inside.wide, (int)m - next0 < BLOCK ? (int)m - next0 : BLOCK);
                copy_commit();
            }
        }
#pragma unroll
        for (int i = 0; i < TR; ++i) {
            const int r = own0 + lm + 8 * i;
            if (r < count) {
                const bool empty = total[i] == 0.0f;
                const float inverse = __fdiv_rn(1.0f, total[i]);
#pragma unroll
                for (int c = 0; c < 4 * NCV; ++c) acc[i][c] = empty ? 0.0f : __fmul_rn(acc[i][c], inverse);
                store_row<DV, NCV>(o + out_at(r), acc[i], ln);
                if (ln == 0) {
                    logs[row0 + r] = empty ? 0.0f : __fmul_rn(ditto_log(total[i]), LOG2E);
                    // NaN where the sum is.
                    tops[row0 + r] = empty ? 0.0f : total[i] == total[i] ? top[i] : total[i];
                }
            }
        }
        copy_wait<0>();
        __syncthreads();
    }
}

#elif DITTO_KIND == 1

constexpr int SB = DITTO_SB, NB = SB / 4, PP = SB + 4;
// What a thread has of a stage's dq: TT queries of every 8, and GQ times four columns.
constexpr int TT = SB / 8, GQ = (NCD + WARPS - 1) / WARPS, PER = BLOCK / SB;

// Adds a chain that is complete to the result so far, times `scale` after the last.
template <int W, int NC>
__device__ __forceinline__ void close_chunk(float (&acc)[TR][4 * NC], float* out, unsigned apart, int own, int count, int ln, bool first, bool last, float scale) {
#pragma unroll
    for (int i = 0; i < TR; ++i) {
        if (own + 8 * i < count) {
            float* const row = out + (u64)(own + 8 * i) * (DITTO_INSIDE ? apart : W);
#pragma unroll
            for (int c = 0; c < 4 * NC; ++c) {
                const int at = column_of(ln, c);
                float old = 0.0f;
                if (!first && at < W) old = row[at];
                acc[i][c] = __fadd_rn(old, acc[i][c]);
                if (last) acc[i][c] = __fmul_rn(acc[i][c], scale);
            }
            store_row<W, NC>(row, acc[i], ln);
        }
#pragma unroll
        for (int c = 0; c < 4 * NC; ++c) acc[i][c] = 0.0f;
    }
}

#if !DITTO_TF32
// acc[g][t][f] += weight of (key, query t) times column f of the key, for keys increasing: fused chains.
template <bool SOME> __device__ __forceinline__ void accumulate_queries(float (&acc)[GQ][TT][4], const float* p, const float* x, int keys, int warp) {
    float w[TT], y[GQ][4];
    auto load = [&](int key) {
        if (TT == 4)
            four(reinterpret_cast<float(&)[4]>(w), p + key * PP);
        else
#pragma unroll
            for (int t = 0; t < TT; ++t) w[t] = p[key * PP + t];
#pragma unroll
        for (int g = 0; g < GQ; ++g)
            if (NCD % WARPS == 0 || warp + WARPS * g < NCD) four(y[g], x + key * PD + 16 * WARPS * g);
    };
    auto multiply = [&](int key, bool more) {
        float cw[TT], cy[GQ][4];
#pragma unroll
        for (int t = 0; t < TT; ++t) cw[t] = w[t];
#pragma unroll
        for (int g = 0; g < GQ; ++g)
#pragma unroll
            for (int f = 0; f < 4; ++f) cy[g][f] = y[g][f];
        if (more) load(key + 1);
#pragma unroll
        for (int g = 0; g < GQ; ++g)
#pragma unroll
            for (int t = 0; t < TT; ++t)
#pragma unroll
                for (int f = 0; f < 4; ++f)
                    if (!SOME || !is_blocked(cw[t])) acc[g][t][f] = __fmaf_rn(cw[t], cy[g][f], acc[g][t][f]);
    };
    load(0);
    // Addresses are those of the first of eight keys, which move on together, and distances that are known.
#pragma unroll 1
    for (; keys >= 8; keys -= 8) {
#pragma unroll
        for (int key = 0; key < 8; ++key) multiply(key, key < 7 || keys > 8);
        p += 8 * PP;
        x += 8 * PD;
    }
#pragma unroll 1
    for (; keys > 0; --keys) {
        multiply(0, keys > 1);
        p += PP;
        x += PD;
    }
}
#endif

__device__ __forceinline__ unsigned turn_of(const unsigned* turn) {
    unsigned x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(turn) : "memory");
    return x;
}
__device__ __forceinline__ void pass_on(unsigned* turn, unsigned x) {
    __threadfence();
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(turn), "r"(x) : "memory");
}

// Backward. A block owns keys and streams the queries. A pair's score and slope are made once; dk and dv are the
// block's own, dq goes from block to block in the order of the keys: `turns` counts, for every stage of queries, the
// blocks that are through, and each continues the chains its predecessor left. Work is handed out in order, so that
// whoever is waited for has begun. Streamed q is double buffered, being first and last to be used; streamed dy is
// fetched anew while q is still in use.
extern "C" __global__ void __launch_bounds__(THREADS, DITTO_BLOCKS)
attention_backward(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, const float* __restrict__ mask,
                   const float* __restrict__ dy, const float* __restrict__ logs, const float* __restrict__ tops, const float* __restrict__ delta,
                   float* dq, float* __restrict__ dk, float* __restrict__ dv, float* chains, unsigned* turns,
                   unsigned batch, unsigned group, unsigned n, unsigned m, unsigned causal, float factor, float scale, MaskView view,
                   Inside inside) {
    extern __shared__ float4 memory[];
    float* const ok = reinterpret_cast<float*>(memory);
    float* const ov = ok + OWN * PD;
    float* const tq = ov + OWN * PV;
    float* const tg = tq + 2 * SB * PD;
    float* const sp = tg + SB * PV;
    u64* const smask = reinterpret_cast<u64*>(sp + OWN * PP);  // of queries, two stages
    float* const slogs = reinterpret_cast<float*>(smask + 2 * SB);
    float* const stops = slogs + 2 * SB;
    float* const sdelta = stops + 2 * SB;
    __shared__ u64 ticket;
#if DITTO_INSIDE
    // Where the list starts in queries, outputs, chains, and what there is per row: read anew each time, since registers are short.
    __shared__ volatile u64 starts[4];
#endif
    // From a shuffle, so that the compiler knows it to be one for all lanes.
    const int warp = __shfl_sync(ALL, threadIdx.x >> 5, 0), lm = lane_m(), ln = lane_n();
    const int own = warp * 8 * TR + lm;
    const int rows = (int)(group * n);
    const unsigned tiles = (m + OWN - 1) / OWN, stages = (rows + SB - 1) / SB;
    const int blocks = (rows + BLOCK - 1) / BLOCK;
    const int column = 4 * (ln + 4 * warp);  // of dq
    for (;;) {
        if (threadIdx.x == 0) {
            ticket = atomicAdd(reinterpret_cast<u64*>(turns), 1ull);
#if DITTO_INSIDE
            const u64 list = ticket % batch;
            starts[0] = list_at<D>(list, n, inside.heads, inside.wide);
            starts[1] = list_at<DV>(list, n, inside.heads, inside.narrow);
            starts[2] = list_at<D>(list, n, inside.heads, inside.chains);
            starts[3] = list * n;
#endif
        }
        __syncthreads();
        const u64 work = ticket;
        if (work >= (u64)tiles * batch) return;
        // The first keys have the most queries under a causal mask.
        const unsigned tile = (unsigned)(work / batch);
        const u64 z = work % batch;
        const int o0 = (int)(tile * OWN);
        const int count = (int)m - o0 < OWN ? (int)m - o0 : OWN;
#if DITTO_INSIDE
        auto stat_at = [&](int r) { return starts[3] + r; };
        auto query_at = [&](int r) { return starts[0] + (u64)(unsigned)r * inside.wide; };
        auto key_at = [&]() { return query_at(o0); };
        auto value_at = key_at;
        auto out_at = [&](int r) { return starts[1] + (u64)(unsigned)r * inside.narrow; };
#else
        const u64 row0 = z * rows;
        auto stat_at = [&](int r) { return row0 + r; };
        auto query_at = [&](int r) { return (row0 + r) * D; };
        const u64 key0 = z * m + o0;
        auto key_at = [&]() { return key0 * D; };
        auto value_at = [&]() { return key0 * DV; };
        auto out_at = [&](int r) { return (row0 + r) * DV; };
#endif
        const int mine = count - warp * 8 * TR < 8 * TR ? count - warp * 8 * TR : 8 * TR;
        unsigned* const turn = turns + 2 + z * stages;

        float ak[TR][4 * NCD], av[TR][4 * NCV];
#pragma unroll
        for (int i = 0; i < TR; ++i) {
#pragma unroll
            for (int c = 0; c < 4 * NCD; ++c) ak[i][c] = 0.0f;
#pragma unroll
            for (int c = 0; c < 4 * NCV; ++c) av[i][c] = 0.0f;
        }

        // Stages come in blocks of BLOCK queries, the last block first. The next place in this order, from `place` on,
        // whose stage is not blocked as a whole.
        auto stage_at = [&](int place) { return (blocks - 1 - place / PER) * BLOCK + place % PER * SB; };
        auto skip = [&](int place) {
            for (; place < blocks * PER; ++place) {
                const int s0 = stage_at(place);
                if (s0 >= rows) continue;
                int a, b;
                query_range(n, s0, rows - s0 < SB ? rows - s0 : SB, a, b);
                if (!causal || b >= o0) break;
            }
            return place;
        };
        auto fetch_q = [&](int s0, int stage) {
            copy_rows<D, PD, SB>(tq + stage * SB * PD, q + query_at(s0), inside.wide, rows - s0 < SB ? rows - s0 : SB);
            for (int t = threadIdx.x; t < SB && s0 + t < rows; t += THREADS) {
                slogs[stage * SB + t] = logs[stat_at(s0) + t];
                stops[stage * SB + t] = tops[stat_at(s0) + t];
                sdelta[stage * SB + t] = delta[stat_at(s0) + t];
                if (DITTO_MASK) smask[stage * SB + t] = mask_at(view, z, group, n, s0 + t);
            }
        };
        auto fetch_g = [&](int s0) { copy_rows<DV, PV, SB>(tg, dy + out_at(s0), inside.narrow, rows - s0 < SB ? rows - s0 : SB); };

        copy_rows<D, PD, OWN>(ok, k + key_at(), inside.wide, count);
        copy_rows<DV, PV, OWN>(ov, v + value_at(), inside.wide, count);
        int place = skip(0), before = -1, stage = 0, chunk = 0;
        bool first = true;
        if (place < blocks * PER) {
            fetch_q(stage_at(place), 0);
            fetch_g(stage_at(place));
            chunk = stage_at(place) / CHUNK;
        }
        copy_commit();
        while (place < blocks * PER) {
            const int s0 = stage_at(place), next = skip(place + 1);
            const bool more = next < blocks * PER;
            const int here = rows - s0 < SB ? rows - s0 : SB;
            if (s0 / CHUNK != chunk) {
                close_chunk<D, NCD>(ak, dk + key_at(), inside.wide, own, count, ln, first, false, scale);
                close_chunk<DV, NCV>(av, dv + value_at(), inside.wide, own, count, ln, first, false, 1.0f);
                first = false;
                chunk = s0 / CHUNK;
            }
            copy_wait<0>();
            __syncthreads();
            if (before >= 0 && threadIdx.x == 0) pass_on(turn + before / SB, tile + 1);
            // The other buffer of q was last read before the barrier.
            if (more) fetch_q(stage_at(next), stage ^ 1);
            copy_commit();
            int low, high;
            query_range(n, s0, here, low, high);
            const int key_low = o0 + warp * 8 * TR;
            const bool active = mine > 0 && (!causal || key_low <= high);
            const bool some = DITTO_MASK || here < SB || (causal && key_low + mine - 1 > low) || (DITTO_TF32 && mine < 8 * TR);
            float* const p = sp + own * PP;
            float s[TR][NB];
            if (active) {
                products<D, PD, NB>(s, ok + own * PD, tq + stage * SB * PD);
#pragma unroll
                for (int j = 0; j < NB; ++j) {
                    const float less = -slogs[stage * SB + streamed(ln, j)], top = stops[stage * SB + streamed(ln, j)];
#pragma unroll
                    for (int i = 0; i < TR; ++i) s[i][j] = weight(__fmaf_rn(__fsub_rn(SCORE(s[i][j]), top), factor, less));
                }
                if (some) {
#pragma unroll
                    for (int j = 0; j < NB; ++j) {
                        const int t = streamed(ln, j);
                        const int query = query_of(s0 + t, n);
                        const u64 at = DITTO_MASK && t < here ? smask[stage * SB + t] : 0;
#pragma unroll
                        for (int i = 0; i < TR; ++i) {
                            const int key = o0 + own + 8 * i;
                            bool open = t < here && (!causal || key <= query);
                            if (DITTO_MASK && open && own + 8 * i < count) open = fabsf(mask[at + key * view.column]) > 0.0f;
                            if (DITTO_TF32 && own + 8 * i >= count) open = false;
                            s[i][j] = open ? s[i][j] : DITTO_TF32 ? 0.0f : __uint_as_float(BLOCKED);
                        }
                    }
                }
#if DITTO_TF32
                accumulate<PV, NCV, NB>(av, s, tg);
                float dp[TR][NB];
                products<DV, PV, NB>(dp, ov + own * PV, tg);
#pragma unroll
                for (int j = 0; j < NB; ++j) {
                    // Nothing was fetched of queries beyond the end.
                    const float less = streamed(ln, j) < here ? sdelta[stage * SB + streamed(ln, j)] : 0.0f;
#pragma unroll
                    for (int i = 0; i < TR; ++i) {
                        s[i][j] = s[i][j] * (dp[i][j] - less);
                        p[i * 8 * PP + streamed(ln, j)] = s[i][j];
                    }
                }
            } else {
#pragma unroll
                for (int j = 0; j < NB; ++j)
#pragma unroll
                    for (int i = 0; i < TR; ++i) p[i * 8 * PP + streamed(ln, j)] = 0.0f;
            }
#else
#pragma unroll
                for (int i = 0; i < TR; ++i)
#pragma unroll
                    for (int j = 0; j < NB; ++j) p[i * 8 * PP + ln + 4 * j] = s[i][j];
                __syncwarp();
                if (some)
                    accumulate<true, PV, NCV, SB, PP>(av, p, tg + 4 * ln);
                else
                    accumulate<false, PV, NCV, SB, PP>(av, p, tg + 4 * ln);
                __syncwarp();
                // Weights wait in shared memory for their slopes, so that registers need not hold both.
                products<DV, PV, NB>(s, ov + own * PV, tg);
#pragma unroll
                for (int j = 0; j < NB; ++j) {
                    const float less = sdelta[stage * SB + ln + 4 * j];
#pragma unroll
                    for (int i = 0; i < TR; ++i) {
                        float& w = p[i * 8 * PP + ln + 4 * j];
                        if (!some || !is_blocked(w)) w = __fmul_rn(w, __fsub_rn(s[i][j], less));
                    }
                }
            }
#endif
            __syncthreads();
            // All warps are done with dy.
            if (more) fetch_g(stage_at(next));
            copy_commit();
            // The chains of dq so far, on their way while dk is made.
            const int last = causal && high / OWN < (int)tiles - 1 ? high / OWN : (int)tiles - 1;
            if (active) {
#if DITTO_TF32
                accumulate<PD, NCD, NB>(ak, s, tq + stage * SB * PD);
#else
                const float* const x = tq + stage * SB * PD + 4 * ln;
                if (some)
                    accumulate<true, PD, NCD, SB, PP>(ak, p, x);
                else
                    accumulate<false, PD, NCD, SB, PP>(ak, p, x);
#endif
            }
            if (tile > 0) {
                if ((threadIdx.x & 31) == 0)
                    while (turn_of(turn + s0 / SB) < tile) __nanosleep(20);
                __syncwarp();
            }
            // A row of dq, or of its chains under way; the stage's first one.
#if DITTO_INSIDE
            const unsigned first_row = s0;
            auto row_of = [&](bool whole, unsigned row) { return (whole ? dq : chains) + starts[whole ? 0 : 2] + (u64)row * (whole ? inside.wide : inside.chains); };
#else
            const u64 first_row = row0 + s0;
            auto row_of = [&](bool whole, u64 row) { return (whole ? dq : chains) + row * D; };
#endif
            const bool closes = (int)tile == last || (o0 + OWN) % CHUNK == 0;
            const int keys = causal && high - o0 + 1 < count ? high - o0 + 1 : count;
#if DITTO_TF32
            // A warp has 16 columns of 16 queries of the stage, at a time.
#pragma unroll 1
            for (int u = warp; u < NCD * (SB / 16); u += WARPS) {
                const int c0 = 16 * (u % NCD), q0 = 16 * (u / NCD);
                float aq[2][4];
                auto place = [&](bool whole, int r, int h) { return row_of(whole, first_row + r) + c0 + 8 * h + 2 * ln; };
#pragma unroll
                for (int r = 0; r < 2; ++r)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        float2 x = make_float2(0.0f, 0.0f);
                        if (o0 % CHUNK != 0 && q0 + 8 * r + lm < here && c0 + 8 * h < D)
                            x = __ldcg(reinterpret_cast<const float2*>(place(false, q0 + 8 * r + lm, h)));
                        aq[r][2 * h] = x.x;
                        aq[r][2 * h + 1] = x.y;
                    }
                const float* const left = sp + 2 * ln * PP + q0 + lm;
                const float* const right = ok + 2 * ln * PD + c0 + lm;
#pragma unroll 4
                for (int key = 0; key < keys; key += 8) {
                    unsigned x[2][2];
#pragma unroll
                    for (int r = 0; r < 2; ++r)
#pragma unroll
                        for (int h = 0; h < 2; ++h) x[r][h] = tf32(left[(key + h) * PP + 8 * r]);
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const unsigned y0 = tf32(right[key * PD + 8 * h]), y1 = tf32(right[(key + 1) * PD + 8 * h]);
                        mma(aq[0][2 * h], aq[0][2 * h + 1], aq[1][2 * h], aq[1][2 * h + 1], x[0][0], x[1][0], x[0][1], x[1][1], y0, y1);
                    }
                }
#pragma unroll
                for (int r = 0; r < 2; ++r)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        if (q0 + 8 * r + lm >= here || c0 + 8 * h >= D) continue;
                        float2 x = make_float2(aq[r][2 * h], aq[r][2 * h + 1]);
                        if (closes) {
                            if (o0 >= CHUNK) {
                                const float2 old = __ldcg(reinterpret_cast<const float2*>(place(true, q0 + 8 * r + lm, h)));
                                x.x += old.x;
                                x.y += old.y;
                            }
                            if ((int)tile == last) {
                                x.x *= scale;
                                x.y *= scale;
                            }
                        }
                        __stcg(reinterpret_cast<float2*>(place(closes, q0 + 8 * r + lm, h)), x);
                    }
            }
#else
            float aq[GQ][TT][4];
#pragma unroll
            for (int g = 0; g < GQ; ++g)
#pragma unroll
                for (int t = 0; t < TT; ++t)
#pragma unroll
                    for (int f = 0; f < 4; ++f) aq[g][t][f] = 0.0f;
            if (o0 % CHUNK != 0) {
#pragma unroll
                for (int g = 0; g < GQ; ++g)
#pragma unroll
                    for (int t = 0; t < TT; ++t)
                        if (lm * TT + t < here) load_four<D>(aq[g][t], row_of(false, first_row + lm * TT + t), column + 16 * WARPS * g);
            }
            if (DITTO_MASK || (causal && o0 + count - 1 > low))
                accumulate_queries<true>(aq, sp + lm * TT, ok + column, keys, warp);
            else
                accumulate_queries<false>(aq, sp + lm * TT, ok + column, keys, warp);
#pragma unroll
            for (int g = 0; g < GQ; ++g)
#pragma unroll
                for (int t = 0; t < TT; ++t) {
                    if (lm * TT + t >= here) continue;
                    const int c = column + 16 * WARPS * g;
                    if (closes) {
                        float old[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                        if (o0 >= CHUNK) load_four<D>(old, row_of(true, first_row + lm * TT + t), c);
#pragma unroll
                        for (int f = 0; f < 4; ++f) {
                            aq[g][t][f] = __fadd_rn(old[f], aq[g][t][f]);
                            if ((int)tile == last) aq[g][t][f] = __fmul_rn(aq[g][t][f], scale);
                        }
                    }
                    store_four<D>(row_of(closes, first_row + lm * TT + t), aq[g][t], c);
                }
#endif
            before = s0;
            place = next;
            stage ^= 1;
        }
        close_chunk<D, NCD>(ak, dk + key_at(), inside.wide, own, count, ln, first, true, scale);
        close_chunk<DV, NCV>(av, dv + value_at(), inside.wide, own, count, ln, first, true, 1.0f);
        copy_wait<0>();
        __syncthreads();
        if (before >= 0 && threadIdx.x == 0) pass_on(turn + before / SB, tile + 1);
    }
}

#elif DITTO_KIND == 2

// delta[row] = sum of dy * o along the row, by the row rule, less dl * log2 e. A warp per row; 8 bytes read per
// element. Rows are taken as they lie; where heads lie inside them, results go to the lists, and dl may be missing.
extern "C" __global__ void __launch_bounds__(256)
attention_delta(const float* __restrict__ dy, const float* __restrict__ o, const float* __restrict__ dl, float* __restrict__ delta, u64 rows,
                unsigned n, unsigned heads) {
    const unsigned lane = threadIdx.x & 31;
    for (u64 row = blockIdx.x * 8ull + (threadIdx.x >> 5); row < rows; row += gridDim.x * 8ull) {
        float s = 0.0f;
#pragma unroll
        for (unsigned c = 0; c < DITTO_DV; c += 32)
            if (c + lane < DITTO_DV) s = __fadd_rn(s, __fmul_rn(dy[row * DITTO_DV + c + lane], o[row * DITTO_DV + c + lane]));
#pragma unroll
        for (int half = 16; half > 0; half /= 2) s = __fadd_rn(s, __shfl_down_sync(0xffffffffu, s, half));
        if (lane == 0) {
            u64 at = row;
            if (DITTO_INSIDE) {
                const unsigned place = (unsigned)row / heads, head = (unsigned)row % heads;
                at = (u64)(place / n * heads + head) * n + place % n;
            }
            delta[at] = DITTO_INSIDE && !dl ? s : __fmaf_rn(dl[at], -LOG2E, s);
        }
    }
}

#else

// out[..., i, j] = 1 where the mask's magnitude is above 0 (or there is none) and, if causal, j <= i; else 0.
extern "C" __global__ void __launch_bounds__(256)
attention_mask(const float* __restrict__ mask, float* __restrict__ out, u64 total, u64 n, u64 m, u64 matrix, u64 row, u64 column, unsigned causal) {
    for (u64 at = blockIdx.x * 256ull + threadIdx.x; at < total; at += gridDim.x * 256ull) {
        const u64 j = at % m, i = at / m % n, z = at / m / n;
        bool open = !causal || j <= i;
        if (mask) open = open && fabsf(mask[z * matrix + i * row + j * column]) > 0.0f;
        out[at] = open ? 1.0f : 0.0f;
    }
}

#endif
