// Tiles of attention_forward and attention_backward: how rows are copied, multiplied and stored.
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

constexpr int D = DITTO_D, DV = DITTO_DV, TR = DITTO_TR, WARPS = DITTO_WARPS, THREADS = 32 * WARPS;
constexpr int OWN = WARPS * 8 * TR;
__device__ constexpr int wide(int d) { return d < 1 ? 1 : (d + 15) / 16; }  // columns of a thread, in fours
constexpr int NCD = wide(D), NCV = wide(DV), PD = 16 * NCD + 4, PV = 16 * NCV + 4;

// Starts copying `rows` rows of W floats, `apart` from each other, into a tile of the given pitch; on tensor cores, zeros into
// the rest of its TILE rows.
template <int W, int PITCH, int TILE> __device__ __forceinline__ void copy_rows(float* tile, const float* from, unsigned apart, int rows) {
    constexpr bool VECTOR = W % 4 == 0;
    constexpr int PER = VECTOR ? W / 4 : W;
    if (PER == 0) return;
    const unsigned to = (unsigned)__cvta_generic_to_shared(tile);
#pragma unroll 1
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
// chains. Columns of a thread: 16 q + 4 ln + e.
template <int PITCH, int NC, int STAGE, int PP>
__device__ __forceinline__ void accumulate_all(float (&acc)[TR][4 * NC], const float* p, const float* b) {
    float w[TR][4], y[4];
#pragma unroll
    for (int i = 0; i < TR; ++i) four(w[i], p + i * 8 * PP);
    four(y, b);
#pragma unroll 1
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
                    for (int f = 0; f < 4; ++f) acc[i][4 * c + f] = __fmaf_rn(w[i][e], y[f], acc[i][4 * c + f]);
#pragma unroll
                for (int f = 0; f < 4; ++f) y[f] = ny[f];
            }
#pragma unroll
        for (int i = 0; i < TR; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) w[i][e] = nw[i][e];
    }
}

// The same without blocked pairs. Rows that are blocked for all lanes cost nothing: under a causal mask, a third of them.
// Not unrolled over t, which would take the compiler as long as all the rest.
template <int PITCH, int NC, int STAGE, int PP>
__device__ __forceinline__ void accumulate_open(float (&acc)[TR][4 * NC], const float* p, const float* b) {
    float w[TR], y[NC][4];
#pragma unroll
    for (int i = 0; i < TR; ++i) w[i] = p[i * 8 * PP];
#pragma unroll
    for (int c = 0; c < NC; ++c) four(y[c], b + 16 * c);
#pragma unroll 1
    for (int t = 1; t <= STAGE; ++t) {
        // Operands of the next step. After the last these are any of the tile, and words between its rows.
        float nw[TR], ny[NC][4];
        b = t < STAGE ? b + PITCH : b;
#pragma unroll
        for (int i = 0; i < TR; ++i) nw[i] = p[i * 8 * PP + t];
#pragma unroll
        for (int c = 0; c < NC; ++c) four(ny[c], b + 16 * c);
#pragma unroll
        for (int i = 0; i < TR; ++i) {
            const bool open = !is_blocked(w[i]);
            if (__any_sync(ALL, open)) {
#pragma unroll
                for (int c = 0; c < NC; ++c)
#pragma unroll
                    for (int f = 0; f < 4; ++f) {
                        const float next = __fmaf_rn(w[i], y[c][f], acc[i][4 * c + f]);
                        acc[i][4 * c + f] = open ? next : acc[i][4 * c + f];
                    }
            }
        }
#pragma unroll
        for (int i = 0; i < TR; ++i) w[i] = nw[i];
#pragma unroll
        for (int c = 0; c < NC; ++c)
#pragma unroll
            for (int f = 0; f < 4; ++f) y[c][f] = ny[c][f];
    }
}

// Either of them: with `some`, pairs may be blocked.
template <int PITCH, int NC, int STAGE, int PP>
__device__ __forceinline__ void accumulate(bool some, float (&acc)[TR][4 * NC], const float* p, const float* b) {
    if (some)
        accumulate_open<PITCH, NC, STAGE, PP>(acc, p, b);
    else
        accumulate_all<PITCH, NC, STAGE, PP>(acc, p, b);
}

#endif

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
