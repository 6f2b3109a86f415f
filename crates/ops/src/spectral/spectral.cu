// Tables of the discrete Fourier transform, and products over modes.
//
// This text is compiled after `#define` lines. If DITTO_TABLE is 1, it is only the kernel of the tables, which needs
// the functions of a turn before it. Otherwise CHUNK is the terms of a chunk of C4, ROWS the batch rows of a thread
// of mode_mix, and MODE_MIX, MODE_MIX_ADJOINT or MODE_MIX_DW the kernel that is compiled.

typedef unsigned long long u64;

#if DITTO_TABLE

// Table elements. One element per thread and turn of a grid-stride loop. Table 0 is plain, table 1 has the weights s /
// n. Rows are (part, mode) or (mode, part), columns are points or (point, part).
extern "C" __global__ void dft_table(float* __restrict__ out, u64 total, u64 pitch, u64 n, u64 low, u64 count,
                                     u64 high_from, int complex, int interleaved, int first) {
    const u64 columns = complex ? 2 * n : n, rows = 2 * count, each = rows * columns;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < total; i += (u64)gridDim.x * blockDim.x) {
        const u64 which = i / each, at = i % each, row = at / columns, column = at % columns;
        const u64 index = interleaved ? row / 2 : row % count;
        const bool imaginary = (interleaved ? row % 2 : row / count) != 0;
        const u64 k = index < low ? index : high_from + (index - low);
        const u64 t = complex ? column / 2 : column;
        const bool second = complex && column % 2 != 0;
        const float j = (float)(k * t % n), grid = (float)n;
        const bool weighted = which + first != 0;
        float v;
        if (imaginary != second) {
            v = weighted ? ditto_sin_turn_over(j, grid) : ditto_sin_turn(j, grid);
            if (imaginary) v = __fsub_rn(0.0f, v);
        } else {
            v = weighted ? ditto_cos_turn_over(j, grid) : ditto_cos_turn(j, grid);
        }
        if (weighted && !complex && k != 0 && 2 * k != n) v = __fmul_rn(2.0f, v);
        out[which * pitch + at] = v;
    }
}

#else

// Input channels that are staged at a time. It divides CHUNK / 2.
constexpr int DEPTH = 32;
constexpr int TILE = 32;
static_assert(CHUNK / 2 % DEPTH == 0, "chunks end where tiles do");

// A complex accumulator by C4: the running sum of the current chunk, and the sum of the earlier chunks.
struct Acc {
    float re, im, sum_re, sum_im;
    bool more;
    __device__ __forceinline__ void clear() { re = im = sum_re = sum_im = 0.0f; more = false; }
    // Ends a chunk: adds its sum to the total.
    __device__ __forceinline__ void carry() {
        sum_re = more ? __fadd_rn(sum_re, re) : re;
        sum_im = more ? __fadd_rn(sum_im, im) : im;
        more = true;
        re = im = 0.0f;
    }
    __device__ __forceinline__ void finish() {
        if (more) {
            re = __fadd_rn(sum_re, re);
            im = __fadd_rn(sum_im, im);
        }
    }
};

// Division, by the faster 32-bit instruction where both fit.
__device__ __forceinline__ u64 over(u64 a, u64 b) { return (a | b) >> 32 ? a / b : (unsigned)a / (unsigned)b; }

// Z[b, k, j] = Σ_i X[b, k, i] W[k, i, j], or with the conjugate transpose of W, which is then stored (outer, inner).
//
// Thread mapping: a block of 4 warps takes one mode, 4 ROWS batch rows and 32 output channels j. A warp takes ROWS of
// the rows, a lane one j. Weights and rows are staged 64 input channels i at a time, so a small product waits for memory
// once. Neighbouring lanes read neighbouring weights (an odd pitch keeps the transposed store free of bank conflicts);
// rows are read by broadcast. The next stage is loaded into registers while the current one is computed.
// Order: i increasing, for each the real part before the imaginary part. A chunk of CHUNK terms is CHUNK / 2 channels.
template <bool ADJOINT>
__device__ __forceinline__ void mix(const float* __restrict__ x, const float* __restrict__ re,
                                    const float* __restrict__ im, float* __restrict__ out, u64 batch, u64 modes,
                                    u64 inner, u64 outer, u64 down, u64 across, u64 tiles) {
    constexpr unsigned STAGED = 64;
    __shared__ float wr[STAGED][TILE + 1], wi[STAGED][TILE + 1];
    __shared__ __align__(16) float xs[4 * ROWS][2][STAGED];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 k = over(tile, down * across), rest = tile - k * (down * across), row0 = over(rest, across);
        const u64 b0 = row0 * (4 * ROWS), j0 = (rest - row0 * across) * TILE;
        const float* wre = re + k * inner * outer;
        const float* wim = im + k * inner * outer;
        Acc acc[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) acc[r].clear();
        float next_re[16], next_im[16], next_x[4 * ROWS];
        // Lanes run along the axis that is contiguous in memory.
        auto place_i = [&](unsigned n) { return ADJOINT ? n / 8 * 32 + lane : 4 * n + warp; };
        auto place_j = [&](unsigned n) { return ADJOINT ? 4 * (n % 8) + warp : lane; };
        auto fetch = [&](u64 i0) {
#pragma unroll
            for (unsigned n = 0; n < 16; ++n) {
                const u64 i = i0 + place_i(n), j = j0 + place_j(n);
                const bool in = i < inner && j < outer;
                const u64 at = ADJOINT ? j * inner + i : i * outer + j;
                next_re[n] = in ? wre[at] : 0.0f;
                next_im[n] = in ? wim[at] : 0.0f;
            }
#pragma unroll
            for (unsigned n = 0; n < 4 * ROWS; ++n) {
                const unsigned line = 4 * (n / 2) + warp, part = line % 2;
                const u64 b = b0 + line / 2, i = i0 + n % 2 * 32 + lane;
                next_x[n] = b < batch && i < inner ? x[((b * 2 + part) * modes + k) * inner + i] : 0.0f;
            }
        };
        fetch(0);
        for (u64 i0 = 0; i0 < inner; i0 += STAGED) {
            if (i0 != 0 && i0 % (CHUNK / 2) == 0) {
#pragma unroll
                for (int r = 0; r < ROWS; ++r) acc[r].carry();
            }
            const unsigned depth = inner - i0 < STAGED ? (unsigned)(inner - i0) : STAGED;
#pragma unroll
            for (unsigned n = 0; n < 16; ++n) {
                wr[place_i(n)][place_j(n)] = next_re[n];
                wi[place_i(n)][place_j(n)] = next_im[n];
            }
#pragma unroll
            for (unsigned n = 0; n < 4 * ROWS; ++n) {
                const unsigned line = 4 * (n / 2) + warp;
                xs[line / 2][line % 2][n % 2 * 32 + lane] = next_x[n];
            }
            __syncthreads();
            if (i0 + STAGED < inner) fetch(i0 + STAGED);
            auto step = [&](unsigned i, int r, float p, float q) {
                const float a = wr[i][lane], c = ADJOINT ? -wi[i][lane] : wi[i][lane];
                acc[r].re = __fmaf_rn(q, -c, __fmaf_rn(p, a, acc[r].re));
                acc[r].im = __fmaf_rn(q, a, __fmaf_rn(p, c, acc[r].im));
            };
            unsigned i = 0;
#pragma unroll 2
            for (; i + 4 <= depth; i += 4) {
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const float4 p = *reinterpret_cast<const float4*>(&xs[warp * ROWS + r][0][i]);
                    const float4 q = *reinterpret_cast<const float4*>(&xs[warp * ROWS + r][1][i]);
                    step(i, r, p.x, q.x);
                    step(i + 1, r, p.y, q.y);
                    step(i + 2, r, p.z, q.z);
                    step(i + 3, r, p.w, q.w);
                }
            }
            for (; i < depth; ++i)
#pragma unroll
                for (int r = 0; r < ROWS; ++r) step(i, r, xs[warp * ROWS + r][0][i], xs[warp * ROWS + r][1][i]);
            __syncthreads();
        }
        const u64 j = j0 + lane;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const u64 b = b0 + warp * ROWS + r;
            acc[r].finish();
            if (b < batch && j < outer) {
                out[(b * 2 * modes + k) * outer + j] = acc[r].re;
                out[((b * 2 + 1) * modes + k) * outer + j] = acc[r].im;
            }
        }
    }
}

#ifdef MODE_MIX
extern "C" __global__ void __launch_bounds__(128)
mode_mix(const float* __restrict__ x, const float* __restrict__ re, const float* __restrict__ im,
         float* __restrict__ out, u64 batch, u64 modes, u64 inner, u64 outer, u64 down, u64 across, u64 tiles) {
    mix<false>(x, re, im, out, batch, modes, inner, outer, down, across, tiles);
}
#endif

#ifdef MODE_MIX_ADJOINT
extern "C" __global__ void __launch_bounds__(128)
mode_mix_adjoint(const float* __restrict__ x, const float* __restrict__ re, const float* __restrict__ im,
                 float* __restrict__ out, u64 batch, u64 modes, u64 inner, u64 outer, u64 down, u64 across,
                 u64 tiles) {
    mix<true>(x, re, im, out, batch, modes, inner, outer, down, across, tiles);
}
#endif

// W[k, i, j] = Σ_b conj(X[b, k, i]) D[b, k, j]. Real parts come first; imaginary parts start at word `half`.
//
// Thread mapping: a block of 4 warps takes one mode, 16 channels i and 32 channels j. A warp takes 4 of the i, a lane
// one j. Both spectra are staged 32 batch rows at a time. Order: b increasing, for each the real part of X before the
// imaginary part. A chunk of CHUNK terms is CHUNK / 2 batch rows. The words between the parts are set to zero.
#ifdef MODE_MIX_DW
extern "C" __global__ void __launch_bounds__(128)
mode_mix_dw(const float* __restrict__ x, const float* __restrict__ d, float* __restrict__ out, u64 batch, u64 modes,
            u64 c, u64 o, u64 down, u64 across, u64 tiles, u64 half) {
    __shared__ __align__(16) float xs[DEPTH][2][16];
    __shared__ float ds[DEPTH][2][TILE];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 words = modes * c * o;
    if (blockIdx.x == 0 && threadIdx.x < half - words) {
        out[words + threadIdx.x] = 0.0f;
        out[half + words + threadIdx.x] = 0.0f;
    }
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 k = over(tile, down * across), rest = tile - k * (down * across), row0 = over(rest, across);
        const u64 i0 = row0 * 16, j0 = (rest - row0 * across) * TILE;
        Acc acc[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) acc[r].clear();
        for (u64 b0 = 0; b0 < batch; b0 += DEPTH) {
            if (b0 != 0 && b0 % (CHUNK / 2) == 0) {
#pragma unroll
                for (int r = 0; r < 4; ++r) acc[r].carry();
            }
            const unsigned depth = batch - b0 < DEPTH ? (unsigned)(batch - b0) : DEPTH;
#pragma unroll
            for (unsigned lines = 0; lines < 2 * DEPTH; lines += 4) {
                const unsigned line = lines + warp;
                const unsigned row = line / 2, part = line % 2;
                const u64 b = b0 + row, base = (b * 2 + part) * modes + k;
                if (b < batch) {
                    if (lane < 16 && i0 + lane < c) xs[row][part][lane] = x[base * c + i0 + lane];
                    if (j0 + lane < o) ds[row][part][lane] = d[base * o + j0 + lane];
                }
            }
            __syncthreads();
#pragma unroll 4
            for (unsigned b = 0; b < depth; ++b) {
                const float g = ds[b][0][lane], h = ds[b][1][lane];
                const float4 p4 = *reinterpret_cast<const float4*>(&xs[b][0][warp * 4]);
                const float4 q4 = *reinterpret_cast<const float4*>(&xs[b][1][warp * 4]);
                const float p[4] = {p4.x, p4.y, p4.z, p4.w}, q[4] = {q4.x, q4.y, q4.z, q4.w};
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    acc[r].re = __fmaf_rn(q[r], h, __fmaf_rn(p[r], g, acc[r].re));
                    acc[r].im = __fmaf_rn(q[r], -g, __fmaf_rn(p[r], h, acc[r].im));
                }
            }
            __syncthreads();
        }
        const u64 j = j0 + lane;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const u64 i = i0 + warp * 4 + r;
            acc[r].finish();
            if (i < c && j < o) {
                out[(k * c + i) * o + j] = acc[r].re;
                out[half + (k * c + i) * o + j] = acc[r].im;
            }
        }
    }
}
#endif

#endif
