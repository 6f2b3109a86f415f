// Scans along an axis. `#define BLOCK` before this text is the elements of a block of the prefix rule; a chunk is BLOCK
// blocks. A missing summand is -0.0, which changes no bit of a sum.

typedef unsigned long long u64;
constexpr unsigned CHUNK = BLOCK * BLOCK;
static_assert(BLOCK == 32, "a block is a lane's, a chunk a warp's");

// Cumulative sums of contiguous elements: value (outer, n).
//
// Thread mapping: a warp scans one chunk, a lane one block of it. The chunk passes through shared memory, so that a
// warp reads and writes 32 contiguous words while a lane owns 32 contiguous elements (the pitch of 33 avoids bank
// conflicts). With `sums` only the chunk's sum is written, to out[line * chunks + chunk]; otherwise `before` holds the
// scanned sums of all chunks. 4 bytes read and 4 written per element.
extern "C" __global__ void __launch_bounds__(128)
scan_lines(const float* __restrict__ x, const float* __restrict__ before, float* __restrict__ out, u64 outer, u64 n,
           u64 inner, u64 chunks, int exclusive, int reverse, int sums) {
    __shared__ float tile[4][BLOCK][BLOCK + 1];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float(*v)[BLOCK + 1] = tile[warp];
    for (u64 item = blockIdx.x * 4ull + warp; item < outer * chunks; item += gridDim.x * 4ull) {
        const u64 line = item / chunks, chunk = item % chunks, first = chunk * CHUNK;
        const unsigned len = n - first < CHUNK ? (unsigned)(n - first) : CHUNK;
        // Element i of the chunk is at from[i], or at from[-i] if the scan is reversed.
        const u64 start = line * n + (reverse ? n - 1 - first : first);
        for (unsigned r = 0; r < BLOCK; ++r) {
            const unsigned i = r * BLOCK + lane;
            v[r][lane] = i < len ? x[reverse ? start - i : start + i] : -0.0f;
        }
        __syncwarp();
        float s = -0.0f;
#pragma unroll
        for (unsigned i = 0; i < BLOCK; ++i) {
            s = __fadd_rn(s, v[lane][i]);
            v[lane][i] = s;
        }
        // Sequential sum over the blocks: each lane gets the sum before its block. Blocks beyond the end count -0.
        float blocks = -0.0f, mine = -0.0f;
#pragma unroll
        for (unsigned b = 0; b < BLOCK; ++b) {
            if (b == lane) mine = blocks;
            blocks = __fadd_rn(blocks, __shfl_sync(0xffffffffu, s, b));
        }
        if (sums) {
            if (lane == 0) out[item] = blocks;
        } else {
            const float base = chunk ? before[item - 1] : -0.0f;
#pragma unroll
            for (unsigned i = 0; i < BLOCK; ++i) v[lane][i] = __fadd_rn(base, __fadd_rn(mine, v[lane][i]));
            __syncwarp();
            for (unsigned r = 0; r < BLOCK; ++r) {
                const unsigned i = r * BLOCK + lane;
                if (i >= len) break;
                float y;
                if (exclusive) {
                    y = i ? v[(i - 1) / BLOCK][(i - 1) % BLOCK] : chunk ? base : 0.0f;
                } else {
                    y = v[r][lane];
                }
                out[reverse ? start - i : start + i] = y;
            }
        }
        __syncwarp();
    }
}

// Cumulative sums of strided elements: value (outer, n, inner).
//
// Thread mapping: a block takes one chunk of rows and 32 neighbouring columns, a lane one column, a warp up to 32 rows,
// which it keeps in registers. A launch with fewer than 32 warps has lines that need no more. A warp reads and writes
// 32 contiguous words.
extern "C" __global__ void __launch_bounds__(1024)
scan_columns(const float* __restrict__ x, const float* __restrict__ before, float* __restrict__ out, u64 outer,
             u64 n, u64 inner, u64 chunks, int exclusive, int reverse, int sums) {
    __shared__ float ends[BLOCK][32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const u64 tiles = (inner + 31) / 32;
    for (u64 item = blockIdx.x; item < outer * chunks * tiles; item += gridDim.x) {
        const u64 column = item % tiles * 32 + lane, chunk = item / tiles % chunks, o = item / tiles / chunks;
        const u64 first = chunk * CHUNK + warp * BLOCK;
        const unsigned len = first >= n ? 0 : n - first < BLOCK ? (unsigned)(n - first) : BLOCK;
        const bool in = column < inner;
        // Row i of this warp is at start + i * step.
        const u64 start = (o * n + (reverse ? n - 1 - first : first)) * inner + column;
        const u64 step = reverse ? 0ull - inner : inner;
        float v[BLOCK];
        float s = -0.0f;
#pragma unroll
        for (unsigned i = 0; i < BLOCK; ++i) v[i] = in && i < len ? x[start + i * step] : -0.0f;
#pragma unroll
        for (unsigned i = 0; i < BLOCK; ++i) {
            s = __fadd_rn(s, v[i]);
            v[i] = s;
        }
        ends[warp][lane] = s;
        __syncthreads();
        float blocks = -0.0f;
        if (sums) {
            if (warp == 0 && in) {
                for (unsigned b = 0; b < warps; ++b) blocks = __fadd_rn(blocks, ends[b][lane]);
                out[(o * chunks + chunk) * inner + column] = blocks;
            }
        } else if (in && len) {
            for (unsigned b = 0; b < warp; ++b) blocks = __fadd_rn(blocks, ends[b][lane]);
            const float base = chunk ? before[(o * chunks + chunk - 1) * inner + column] : -0.0f;
            // The exclusive scan's value at the first row: the sum at the end of the previous block.
            float last = warp ? __fadd_rn(base, blocks) : chunk ? base : 0.0f;
#pragma unroll
            for (unsigned i = 0; i < BLOCK; ++i) {
                const float y = __fadd_rn(base, __fadd_rn(blocks, v[i]));
                if (i < len) out[start + i * step] = exclusive ? last : y;
                last = y;
            }
        }
        __syncthreads();
    }
}

// Scans the sums of the chunks of each line, (outer, chunks, inner), in place and sequentially.
//
// Thread mapping: a warp takes a line and up to 32 columns of it, a lane one column. A single column is read 32 chunks
// at a time by all lanes, which exchange their words by shuffles, so that no step waits for memory.
extern "C" __global__ void __launch_bounds__(128)
scan_sums(float* __restrict__ sums, u64 outer, u64 chunks, u64 inner) {
    const unsigned lane = threadIdx.x % 32;
    const u64 tiles = (inner + 31) / 32;
    for (u64 item = blockIdx.x * 4ull + threadIdx.x / 32; item < outer * tiles; item += gridDim.x * 4ull) {
        if (inner == 1) {
            float* line = sums + item * chunks;
            float s = -0.0f;
            float next = lane < chunks ? line[lane] : -0.0f;
            for (u64 c = 0; c < chunks; c += 32) {
                const float v = next;
                next = c + 32 + lane < chunks ? line[c + 32 + lane] : -0.0f;
                float mine = -0.0f;
#pragma unroll
                for (unsigned b = 0; b < 32; ++b) {
                    s = __fadd_rn(s, __shfl_sync(0xffffffffu, v, b));
                    if (b == lane) mine = s;
                }
                if (c + lane < chunks) line[c + lane] = mine;
            }
            continue;
        }
        const u64 column = item % tiles * 32 + lane;
        if (column >= inner) continue;
        float* line = sums + item / tiles * chunks * inner + column;
        float s = -0.0f;
        u64 c = 0;
        for (; c + 8 <= chunks; c += 8) {
            float v[8];
#pragma unroll
            for (unsigned i = 0; i < 8; ++i) v[i] = line[(c + i) * inner];
#pragma unroll
            for (unsigned i = 0; i < 8; ++i) {
                s = __fadd_rn(s, v[i]);
                line[(c + i) * inner] = s;
            }
        }
        for (; c < chunks; ++c) {
            s = __fadd_rn(s, line[c * inner]);
            line[c * inner] = s;
        }
    }
}

// Steps of a recurrence whose loads are issued together.
constexpr int AHEAD = 8;

// h[t] = fma(a, h[t-1], b x[t]).
//
// Thread mapping: a thread has one state of one batch entry and walks along the time axis. Threads of a warp have
// neighbouring states, so their accesses are coalesced. The loads of AHEAD steps overlap; only the multiply-adds depend
// on each other. 12 bytes read and 4 written per step where the coefficients vary.
extern "C" __global__ void __launch_bounds__(128)
selective_scan(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ x,
               const float* __restrict__ h0, float* __restrict__ out, u64 batch, u64 steps, u64 states, int a_varies,
               int b_varies) {
    for (u64 item = blockIdx.x * 128ull + threadIdx.x; item < batch * states; item += gridDim.x * 128ull) {
        const u64 j = item % states, base = item / states * steps * states + j;
        const float a_fixed = a_varies ? 0.0f : a[j], b_fixed = b_varies ? 0.0f : b[j];
        float h = h0[item];
        u64 t = 0;
        for (; t + AHEAD <= steps; t += AHEAD) {
            float av[AHEAD], u[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const u64 at = base + (t + i) * states;
                av[i] = a_varies ? a[at] : a_fixed;
                u[i] = __fmul_rn(b_varies ? b[at] : b_fixed, x[at]);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                h = __fmaf_rn(av[i], h, u[i]);
                out[base + (t + i) * states] = h;
            }
        }
        for (; t < steps; ++t) {
            const u64 at = base + t * states;
            h = __fmaf_rn(a_varies ? a[at] : a_fixed, h, __fmul_rn(b_varies ? b[at] : b_fixed, x[at]));
            out[at] = h;
        }
    }
}

// The gradients of a recurrence: tau[t] = fma(a[t+1], tau[t+1], g[t]) from the end. Its products go to the parts of
// `out` that start at *_at. The words from *_end to the next part are set to zero.
//
// Thread mapping as above, walking backwards in time.
extern "C" __global__ void __launch_bounds__(128)
selective_scan_bwd(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ x,
                   const float* __restrict__ h0, const float* __restrict__ h, const float* __restrict__ g,
                   float* __restrict__ out, u64 batch, u64 steps, u64 states, int a_varies, int b_varies, u64 da_at,
                   u64 da_end, u64 db_at, u64 db_end, u64 dx_at, u64 dx_end, u64 dh_at, u64 dh_end, u64 words) {
    if (blockIdx.x == 0 && threadIdx.x < 4) {
        const u64 i = threadIdx.x;
        if (da_end + i < db_at) out[da_end + i] = 0.0f;
        if (db_end + i < dx_at) out[db_end + i] = 0.0f;
        if (dx_end + i < dh_at) out[dx_end + i] = 0.0f;
        if (dh_end + i < words) out[dh_end + i] = 0.0f;
    }
    float* da = out + da_at;
    float* db = out + db_at;
    float* dx = out + dx_at;
    for (u64 item = blockIdx.x * 128ull + threadIdx.x; item < batch * states; item += gridDim.x * 128ull) {
        const u64 j = item % states, base = item / states * steps * states + j;
        const float a_fixed = a_varies ? 0.0f : a[j], b_fixed = b_varies ? 0.0f : b[j];
        float tau = 0.0f, a_after = 0.0f, sum_a = 0.0f, sum_b = 0.0f;
        u64 left = steps;
        while (left) {
            const int count = left < AHEAD ? (int)left : AHEAD;
            float av[AHEAD], bv[AHEAD], xv[AHEAD], hv[AHEAD], gv[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                if (i < count) {
                    const u64 t = left - 1 - i, at = base + t * states;
                    av[i] = a_varies ? a[at] : a_fixed;
                    bv[i] = b_varies ? b[at] : b_fixed;
                    xv[i] = x[at];
                    hv[i] = t ? h[at - states] : h0[item];
                    gv[i] = g[at];
                }
            }
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                if (i < count) {
                    const u64 t = left - 1 - i, at = base + t * states;
                    tau = t + 1 == steps ? gv[i] : __fmaf_rn(a_after, tau, gv[i]);
                    a_after = av[i];
                    dx[at] = __fmul_rn(bv[i], tau);
                    if (a_varies) da[at] = __fmul_rn(tau, hv[i]);
                    else sum_a = __fmaf_rn(tau, hv[i], sum_a);
                    if (b_varies) db[at] = __fmul_rn(tau, xv[i]);
                    else sum_b = __fmaf_rn(tau, xv[i], sum_b);
                }
            }
            left -= count;
        }
        if (!a_varies) da[item] = sum_a;
        if (!b_varies) db[item] = sum_b;
        out[dh_at + item] = steps ? __fmul_rn(a_after, tau) : 0.0f;
    }
}
