// Convolutions of thin groups of channels, each convolved alone, in float32: the same bits as conv.cu.
//
// This text is compiled behind `#define` lines:
//   CHUNK             terms of a chunk, the contract's
//   DITTO_D           spatial axes, at least 2: before a single one comes one of size 1
//   DITTO_KY, _KX     taps along the last two axes,
//   DITTO_SY, _SX     elements of the source from one position to the next,
//   DITTO_DY, _DX     and from one tap to the next,
//   DITTO_FY, _FX     1: the taps run backwards
//   DITTO_WX          elements of the kernel from one tap along the last axis to the next
//   DITTO_R           lines of outputs of a thread; 0: compile the gradient of the kernel (two axes)
//
// Along an axis, position p and tap t meet element p * step + first + t * tap_step of the source, a zero
// outside it. Zeros take part in the sums as any other value does.

typedef long long i64;

constexpr int D = DITTO_D, KY = DITTO_KY, KX = DITTO_KX, SY = DITTO_SY, SX = DITTO_SX;
// What the taps span, from the lowest element that they see on.
constexpr int SPAN_Y = (KY - 1) * DITTO_DY + 1, SPAN_X = (KX - 1) * DITTO_DX + 1;

struct Axis {
    int positions, step, taps, first, tap_step, source, out_first, out_step, out, w_first, w_step, w;
};
struct Axes {
    Axis axis[D];
};

// How far above the lowest element a tap is.
__device__ __forceinline__ int above_y(int tap) { return (DITTO_FY ? KY - 1 - tap : tap) * DITTO_DY; }
__device__ __forceinline__ int above_x(int tap) { return (DITTO_FX ? KX - 1 - tap : tap) * DITTO_DX; }
// The lowest element that the taps see at position 0.
__device__ __forceinline__ int low_y(const Axis& a) { return a.first - (DITTO_FY ? SPAN_Y - 1 : 0); }
__device__ __forceinline__ int low_x(const Axis& a) { return a.first - (DITTO_FX ? SPAN_X - 1 : 0); }

#if DITTO_R

constexpr int R = DITTO_R;
// Lines of the source that the taps of a thread's outputs span.
constexpr int ROWS = (R - 1) * SY + SPAN_Y;
// Whether the taps are so many that unrolling them all would not stay in registers.
constexpr bool LARGE = KY * KX > 25;

struct Sizes {
    i64 units;                          // of R lines of outputs, or pieces of them
    i64 across, tall;                   // threads of a block along a line, and units of a block
    i64 pieces, blocks, around;         // pieces of a line, blocks of R lines, positions along the axes around them
    i64 sheets;                         // taps along the axes around
    i64 rows, channels, groups;
    i64 plane, out_plane;               // floats of a channel of the source and of the result
    i64 by_group, by_row, by_channel;   // floats of the kernel from one to the next
};

// Takes the last digit, below n, off a number.
__device__ __forceinline__ int take(i64& rest, i64 n) {
    if (n == 1) return 0;
    const i64 q = rest >> 31 || n >> 31 ? rest / n : (i64)((unsigned)rest / (unsigned)n);
    const int digit = (int)(rest - q * n);
    rest = q;
    return digit;
}

// Whether any output of a thread meets line i of those that its taps span.
__device__ __forceinline__ bool is_met(int i) {
#pragma unroll
    for (int t = 0; t < KY; ++t) {
        const int up = i - above_y(t);
        if (up >= 0 && up % SY == 0 && up / SY < R) return true;
    }
    return false;
}

// Thread mapping: a thread has R outputs below each other, neighbouring lanes neighbouring positions of a line;
// `across` threads a unit, `tall` units a block, grid-stride. Per thread and channel: the source lines that its
// taps see are loaded once, R + KY - 1 lines of KX elements at unit steps, and feed all outputs that meet them;
// with many taps they are loaded by each output, mostly from the first-level cache.
// w: at the strides given; bias: [groups * rows] or null.
extern "C" __global__ void __launch_bounds__(256)
ditto_depthwise(const float* __restrict__ w, const float* __restrict__ source, float* __restrict__ out,
                const float* __restrict__ bias, const __grid_constant__ Sizes s,
                const __grid_constant__ Axes axes) {
    const Axis &ay = axes.axis[D - 2], &ax = axes.axis[D - 1];
    const int unit_of_block = threadIdx.x / (unsigned)s.across;
    const int lane = threadIdx.x - unit_of_block * (int)s.across;
    if (unit_of_block >= (int)s.tall) return;
    const int width = ax.source;

    for (i64 unit = (i64)blockIdx.x * s.tall + unit_of_block; unit < s.units; unit += (i64)gridDim.x * s.tall) {
        i64 rest = unit;
        const int px = take(rest, s.pieces) * (int)s.across + lane, py = take(rest, s.blocks) * R;
        int place = take(rest, s.around);
        const i64 line = rest;  // (image, group, row)
        const int row = take(rest, s.rows);
        const i64 plane = rest;  // (image, group)
        const int group = take(rest, s.groups);
        if (px >= ax.positions) continue;

        // The position along the axes around, as where tap 0 lies there.
        int x[D];
        i64 to = 0, stride = 1;
#pragma unroll
        for (int d = D - 3; d >= 0; --d) {
            const Axis& a = axes.axis[d];
            const int q = place / a.positions, p = place - q * a.positions;
            x[d] = p * a.step + a.first;
            to += (a.out_first + (i64)p * a.out_step) * stride;
            stride *= a.out;
            place = q;
        }
        const int y0 = py * SY + low_y(ay), x0 = px * SX + low_x(ax);
        bool there[KX];
#pragma unroll
        for (int t = 0; t < KX; ++t) there[t] = (unsigned)(x0 + above_x(t)) < (unsigned)width;

        float acc[R];
#pragma unroll
        for (int r = 0; r < R; ++r) acc[r] = 0.0f;

        for (int c = 0; c < (int)s.channels; ++c) {
            for (int sheet = 0; sheet < (int)s.sheets; ++sheet) {
                int tap = sheet;
                bool inside = true;
                i64 from = 0, high = 1, kernel = 0, kernel_high = 1;
#pragma unroll
                for (int d = D - 3; d >= 0; --d) {
                    const Axis& a = axes.axis[d];
                    const int q = tap / a.taps, t = tap - q * a.taps, at = x[d] + t * a.tap_step;
                    inside = inside && (unsigned)at < (unsigned)a.source;
                    from += at * high;
                    high *= a.source;
                    kernel += (a.w_first + t * a.w_step) * kernel_high;
                    kernel_high *= a.w;
                    tap = q;
                }
                const float* lines = source + (plane * s.channels + c) * s.plane + from * ((i64)ay.source * width);
                const float* k = w + group * s.by_group + row * s.by_row + c * s.by_channel +
                                 (kernel * ay.w + ay.w_first) * ax.w + ax.w_first;

                if (LARGE) {
#pragma unroll 1
                    for (int ty = 0; ty < KY; ++ty) {
                        float weight[KX];
#pragma unroll
                        for (int tx = 0; tx < KX; ++tx) weight[tx] = __ldg(k + tx * DITTO_WX);
                        k += ay.w_step * ax.w;
#pragma unroll
                        for (int r = 0; r < R; ++r) {
                            const int y = y0 + r * SY + above_y(ty);
                            const bool in = inside && (unsigned)y < (unsigned)ay.source;
                            const float* from = lines + (i64)y * width + x0;
#pragma unroll
                            for (int tx = 0; tx < KX; ++tx)
                                acc[r] = __fmaf_rn(weight[tx], in && there[tx] ? __ldg(from + above_x(tx)) : 0.0f, acc[r]);
                        }
                    }
                } else {
                    float weight[KY][KX];
#pragma unroll
                    for (int ty = 0; ty < KY; ++ty) {
#pragma unroll
                        for (int tx = 0; tx < KX; ++tx) weight[ty][tx] = __ldg(k + tx * DITTO_WX);
                        k += ay.w_step * ax.w;
                    }
                    // Line by line in the order of the taps, so that every output meets its taps in theirs.
#pragma unroll
                    for (int n = 0; n < ROWS; ++n) {
                        const int i = DITTO_FY ? ROWS - 1 - n : n;
                        if (!is_met(i)) continue;
                        const bool in = inside && (unsigned)(y0 + i) < (unsigned)ay.source;
                        const float* from = lines + (i64)(y0 + i) * width + x0;
                        float v[KX];
#pragma unroll
                        for (int t = 0; t < KX; ++t) v[t] = in && there[t] ? __ldg(from + above_x(t)) : 0.0f;
#pragma unroll
                        for (int r = 0; r < R; ++r) {
#pragma unroll
                            for (int ty = 0; ty < KY; ++ty) {
                                if (r * SY + above_y(ty) != i) continue;
#pragma unroll
                                for (int tx = 0; tx < KX; ++tx) acc[r] = __fmaf_rn(weight[ty][tx], v[tx], acc[r]);
                            }
                        }
                    }
                }
            }
        }

        const float add = bias ? bias[group * s.rows + row] : -0.0f;  // which changes nothing
        float* result = out + line * s.out_plane + ax.out_first + (i64)px * ax.out_step;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const i64 y = to * ay.out + ay.out_first + (i64)(py + r) * ay.out_step;
            if (py + r < ay.positions) result[y * ax.out] = __fadd_rn(acc[r], add);
        }
    }
}

#else

constexpr int LANES = 32, THREADS = LANES * KY;

struct Sizes {
    i64 groups, rows, channels;
    i64 plane, positions;   // floats of a channel of the source and of g
    i64 k;                  // positions of all images
    i64 total;              // floats of a part of the result
    i64 lines, piece;       // lines of a stage, or positions of one line if that is shorter
    i64 source_rows;        // lines of the source of the largest stage
    i64 pitch_x, pitch_g;   // floats of a line in shared memory, odd
};

// Copies 4 bytes to shared memory in the background, of which `bytes` (0 or 4) are read; the rest are zeros.
__device__ __forceinline__ void copy(unsigned dst, const float* src, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(dst), "l"(src), "r"(bytes));
}

// The gradient of the kernel: each sum's chunk is a chain of its own.
//
// Thread mapping: blockIdx.x: chunk; blockIdx.y: 32 groups, the lanes of every warp; blockIdx.z: (row, channel).
// A warp has a line of the kernel, a thread the sums of one group and that line.
// A stage of some lines of g and the lines of the source that its taps see, for all 32 groups, is copied to
// shared memory: [line][group][pitch_x], then [group][pitch_g]; pitches are odd, so that lanes meet no bank
// twice. Blocks are small enough for several on a multiprocessor: one copies while others add.
// g: [images][groups * rows][positions]; source: [images][groups * channels][plane]; out: [chunks][total].
extern "C" __global__ void __launch_bounds__(THREADS)
ditto_depthwise_grad(const float* __restrict__ g, const float* __restrict__ source, float* __restrict__ out,
                     const __grid_constant__ Sizes s, const __grid_constant__ Axes axes) {
    extern __shared__ __align__(16) float shared[];
    const Axis &ay = axes.axis[0], &ax = axes.axis[1];
    const int lane = threadIdx.x & 31, ky = threadIdx.x >> 5;
    const int row = (int)(blockIdx.z / (unsigned)s.channels), c = (int)(blockIdx.z - row * s.channels);
    const i64 g0 = (i64)blockIdx.y * LANES;
    const int last = (int)min((i64)LANES, s.groups - g0) - 1;  // groups beyond it repeat it
    const int across = ax.positions, height = ay.source, width = ax.source;
    const int pitch_x = (int)s.pitch_x, pitch_g = (int)s.pitch_g;
    const bool in_pieces = s.piece < across;
    const float* const shared_x = shared;
    const float* const shared_g = shared + s.source_rows * LANES * pitch_x;
    const unsigned to_x = (unsigned)__cvta_generic_to_shared(shared_x);
    const unsigned to_g = (unsigned)__cvta_generic_to_shared(shared_g);

    float acc[KX];
#pragma unroll
    for (int t = 0; t < KX; ++t) acc[t] = 0.0f;

    i64 k = (i64)blockIdx.x * CHUNK;
    const i64 end = min(k + CHUNK, s.k);
    i64 image = k / s.positions;
    int at = (int)(k - image * s.positions);
    while (k < end) {
        const int y = at / across, p = at - y * across;
        const int room = in_pieces ? min((int)s.piece, across - p) : (int)s.lines * across - p;
        const int len = (int)min(min(end - k, s.positions - at), (i64)room);
        const int lines = in_pieces ? 1 : (p + len + across - 1) / across;
        const int base = in_pieces ? p : 0;
        const int rows = (lines - 1) * SY + SPAN_Y;
        const int columns = ((in_pieces ? len : across) - 1) * SX + SPAN_X;
        const int y0 = y * SY + low_y(ay), x0 = base * SX + low_x(ax);

        for (int e = ky; e < rows * LANES; e += KY) {
            const int group = min(e & 31, last), y = y0 + (e >> 5);
            const bool in = (unsigned)y < (unsigned)height;
            const float* from = source + ((image * s.groups + g0 + group) * s.channels + c) * s.plane;
            const int first = (int)((unsigned)y * (unsigned)width + (unsigned)x0);
            const unsigned to = to_x + (unsigned)(e * pitch_x) * 4;
            for (int x = lane; x < columns; x += 32) {
                const bool there = in && (unsigned)(x0 + x) < (unsigned)width;
                copy(to + x * 4, there ? from + (first + x) : source, there ? 4 : 0);
            }
        }
        for (int e = ky; e < LANES; e += KY) {
            const float* from = g + ((image * s.groups + g0 + min(e, last)) * s.rows + row) * s.positions + at;
            const unsigned to = to_g + (unsigned)(e * pitch_g) * 4;
#pragma unroll 4
            for (int x = lane; x < len; x += 32) copy(to + x * 4, from + x, 4);
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();

        const float* gs = shared_g + lane * pitch_g;
        const float* xs = shared_x + (above_y(ky) * LANES + lane) * pitch_x + (p - base) * SX;
        for (int done = 0, from = p; done < len;) {
            const int some = min(across - from, len - done);
#pragma unroll 8
            for (int i = 0; i < some; ++i) {
                const float gi = gs[done + i];
#pragma unroll
                for (int t = 0; t < KX; ++t) acc[t] = __fmaf_rn(gi, xs[i * SX + above_x(t)], acc[t]);
            }
            done += some;
            xs += SY * LANES * pitch_x - (from - base) * SX;
            from = 0;
        }
        __syncthreads();

        k += len;
        at += len;
        if (at == s.positions) {
            at = 0;
            ++image;
        }
    }

    if (lane > last) return;
    float* to = out + blockIdx.x * s.total + (((g0 + lane) * s.rows + row) * s.channels + c) * (KY * KX) + ky * KX;
#pragma unroll
    for (int t = 0; t < KX; ++t) to[t] = acc[t];
}

// Adds the chunks of each sum in increasing order. One sum a thread, grid-stride; many loads are under way at
// once, since there are few sums.
// partial: [parts][total]; out: [total].
extern "C" __global__ void __launch_bounds__(64)
ditto_depthwise_reduce(const float* __restrict__ partial, float* __restrict__ out, i64 total, i64 parts) {
    for (i64 e = (i64)blockIdx.x * 64 + threadIdx.x; e < total; e += (i64)gridDim.x * 64) {
        float sum = partial[e];
#pragma unroll 32
        for (i64 p = 1; p < parts; ++p) sum = __fadd_rn(sum, partial[p * total + e]);
        out[e] = sum;
    }
}

#endif
