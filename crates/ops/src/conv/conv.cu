// Convolutions in float32 as matrix products with a gathered operand: the same bits as the CPU.
//
// This text follows matmul.cu, whose tiles and main loop it uses, behind its `#define` lines and
//   DITTO_CONV        1: a convolution, 2: the gradient of its kernel, 3: compile only the small kernels
//   DITTO_D           spatial axes
//   DITTO_FEW         1: few taps: what a column sees of them is a word of bits; 0: compared tap by tap
//   DITTO_TAPS        with DITTO_CONV 2 and DITTO_FEW: the taps along each axis, 5 bits each, the first axis lowest
//   DITTO_DENSE       1: the positions of an image are all of the result, in order
// With DITTO_CONV 1, DITTO_TB is 0, DITTO_TA says how the kernel lies, DITTO_VC that the positions are dense and a
// multiple of 4, and DITTO_BIAS is 1: what is absent is -0.0. With DITTO_CONV 2, DITTO_TA is 0, DITTO_TB 1.
//
// Along an axis, position p and tap t meet element p * step + first + t * tap_step of the source, a zero
// outside it. Zeros take part in the sums as any other value does.

constexpr int D = DITTO_D;
constexpr int MOST_AXES = DITTO_MOST_AXES, MOST_TAPS = 30, MOST_PATTERNS = 38;

struct Axis {
    int positions, step, taps, first, tap_step, source, out_first, out_step, out;
    int digit;  // of BK, when the positions of all axes and the images are the digits of k
};
struct Axes {
    Axis axis[MOST_AXES];
};
// For few taps: where each lies in the source from tap 0 on, and per axis and its taps, the bits of the taps
// that lie there.
struct Few {
    int offset[MOST_TAPS];
    unsigned pattern[MOST_PATTERNS];
};
// What the kernels need to know besides.
struct Sizes {
    i64 m, n, k;           // of the product of a group
    i64 groups, slice, parts;
    i64 positions, taps;   // of an image
    i64 plane, out_plane;  // floats of a channel of the source and of the result
    i64 image, out_image;  // and of an image
    i64 a_group, a_ld;     // floats of the kernel from one group, and row, to the next
    i64 digit;             // of BK, for the images
    i64 tap_digit, channel_digit;  // a block's warps as taps, and the rest of them as floats of channels
};

#if !DITTO_REDUCE
__device__ __forceinline__ void hide(Origin& o) {
    hide(o.tm);
    hide(o.tn);
    hide(o.row0);
    hide(o.col0);
}
#endif

// What a number of a position means. The sizes are hidden: the compiler would prepare the divisions by them before a
// product's sums begin, and keep them in registers that the sums need.
struct Digits {
    i64 positions;  // of an image
    int n[D];       // and of an axis
    const Axes& axes;

    __device__ __forceinline__ Digits(i64 positions, const Axes& axes) : positions(positions), axes(axes) {
        hide(this->positions);
#pragma unroll
        for (int d = 0; d < D; ++d) hide(n[d] = axes.axis[d].positions);
    }
    // Position `p` along each axis, outermost first.
    __device__ __forceinline__ void decode(unsigned p, int (&at)[D]) const {
#pragma unroll
        for (int d = D - 1; d > 0; --d) {
            const unsigned q = p / (unsigned)n[d];
            at[d] = (int)(p - q * n[d]);
            p = q;
        }
        at[0] = (int)p;
    }
    // The image that position j of all images belongs to, which becomes the position inside it.
    __device__ __forceinline__ i64 image(i64& j) const {
        const i64 q = j >> 31 ? j / positions : (unsigned)j / (unsigned)positions;
        j -= q * positions;
        return q;
    }
    // Where a position lies in a channel of the result.
    __device__ __forceinline__ i64 place(unsigned p) const {
        if (DITTO_DENSE) return p;
        int at[D];
        decode(p, at);
        i64 to = 0;
#pragma unroll
        for (int d = 0; d < D; ++d)
            to = to * axes.axis[d].out + axes.axis[d].out_first + (i64)at[d] * axes.axis[d].out_step;
        return to;
    }
};

// Offsets into the source: 32 bits wrap around, so that sums of them may pass below 0.
#if DITTO_LONG
typedef i64 off;
#else
typedef unsigned off;
#endif

#if DITTO_CONV == 3

struct KernelAxes {
    int taps[MOST_AXES], first[MOST_AXES], step[MOST_AXES], size[MOST_AXES];
};

// Where a tap lies in the kernel of a pair of channels.
__device__ __forceinline__ i64 kernel_place(const KernelAxes& axes, int tap) {
    i64 at = 0, stride = 1;
#pragma unroll
    for (int d = D - 1; d >= 0; --d) {
        const int q = tap / axes.taps[d];
        at += (axes.first[d] + (i64)(tap - q * axes.taps[d]) * axes.step[d]) * stride;
        stride *= axes.size[d];
        tap = q;
    }
    return at;
}

// Writes a kernel as (group, channel and tap, row), which is how a product's first operand can be copied in
// whole lines: to[g][k][m] = w[g by_group + m by_row + channel by_channel + tap's place].
// Thread mapping: one element per thread, grid-stride, rows fastest. Reads are by_row apart: small tensors.
extern "C" __global__ void __launch_bounds__(256)
ditto_conv_kernel(const float* __restrict__ w, float* __restrict__ to, i64 groups, i64 m, i64 k, i64 taps,
                  i64 by_group, i64 by_row, i64 by_channel, const __grid_constant__ KernelAxes axes) {
    const i64 total = groups * m * k;
    for (i64 e = (i64)blockIdx.x * 256 + threadIdx.x; e < total; e += (i64)gridDim.x * 256) {
        const i64 line = e / m, row = e - line * m, g = line / k, kk = line - g * k;
        const i64 channel = kk / taps, at = kernel_place(axes, (int)(kk - channel * taps));
        to[e] = w[g * by_group + row * by_row + channel * by_channel + at];
    }
}

// Writes, for each tap, where it lies in the source from tap 0 on, and how far along each axis; then, for each
// tap, where it lies in the kernel.
extern "C" __global__ void __launch_bounds__(256)
ditto_conv_taps(int* __restrict__ table, i64 taps, const __grid_constant__ Axes axes,
                const __grid_constant__ KernelAxes kernel) {
    for (i64 e = (i64)blockIdx.x * 256 + threadIdx.x; e < taps; e += (i64)gridDim.x * 256) {
        int tap = (int)e, offset = 0, stride = 1, shift[D];
        table[taps * (D + 1) + e] = (int)kernel_place(kernel, tap);
#pragma unroll
        for (int d = D - 1; d >= 0; --d) {
            const int q = tap / axes.axis[d].taps;
            shift[d] = (tap - q * axes.axis[d].taps) * axes.axis[d].tap_step;
            offset += shift[d] * stride;
            stride *= axes.axis[d].source;
            tap = q;
        }
        table[e * (D + 1)] = offset;
#pragma unroll
        for (int d = 0; d < D; ++d) table[e * (D + 1) + 1 + d] = shift[d];
    }
}

// Writes V neighbouring results of the kernels below, which have the same sum.
#if DITTO_EPILOGUE
#define EPILOGUE_ARGUMENT , epilogue_with
template <int V> __device__ __forceinline__ void write(float* out, i64 at, float sum, const Epilogue& f) {
    Extras<V> extras;
    Vec<V> v;
#pragma unroll
    for (int i = 0; i < V; ++i) v.v[i] = sum;
    extras.load(f, at, 0);
    extras.finish(f, v, at);
    *(Vec<V>*)(out + at) = v;
}
#else
#define EPILOGUE_ARGUMENT
template <int V> __device__ __forceinline__ void write(float* out, i64 at, float sum) {
    Vec<V> v;
#pragma unroll
    for (int i = 0; i < V; ++i) v.v[i] = sum;
    *(Vec<V>*)(out + at) = v;
}
#endif

// Positions that no tap reaches: +0 and, with `bias`, the channel's. With DITTO_VC these are all positions, four at a time.
extern "C" __global__ void __launch_bounds__(256)
ditto_conv_fill(float* __restrict__ out, const float* __restrict__ bias, i64 images, i64 channels, i64 positions,
                i64 out_plane, const __grid_constant__ Axes axes EPILOGUE_PARAM) {
    constexpr int V = DITTO_VC ? 4 : 1;
    const i64 of_line = positions / V, total = images * channels * of_line;
    const Digits digits(positions, axes);
    for (i64 e = (i64)blockIdx.x * 256 + threadIdx.x; e < total; e += (i64)gridDim.x * 256) {
        // The division of 32 bits is many times shorter.
        const i64 line = e >> 31 ? e / of_line : (unsigned)e / (unsigned)of_line, place = (e - line * of_line) * V;
        const float value = bias ? __fadd_rn(0.0f, bias[line % channels]) : 0.0f;
        write<V>(out, line * out_plane + digits.place((unsigned)place), value EPILOGUE_ARGUMENT);
    }
}

// A convolution of few rows, as when each channel is convolved alone: one output per thread, grid-stride,
// neighbouring lanes having neighbouring positions. Per output k loads of the source, which neighbours share, and
// as many of the kernel, which a block's threads share.
// w: at the strides given; table: of `ditto_conv_taps`.
extern "C" __global__ void __launch_bounds__(256)
ditto_conv_direct(const float* __restrict__ w, const float* __restrict__ source, float* __restrict__ out,
                  const float* __restrict__ bias, const int* __restrict__ table, i64 by_group, i64 by_row,
                  i64 by_channel, const __grid_constant__ Sizes s, const __grid_constant__ Axes axes EPILOGUE_PARAM) {
    const int taps = (int)s.taps, channels = (int)(s.k / s.taps);
    const int* places = table + taps * (D + 1);
    const Digits digits(s.positions, axes);
    for (i64 line = blockIdx.y; line < s.groups * s.m; line += gridDim.y) {
        const i64 group = line / s.m, row = line - group * s.m;
        const float* kernel = w + group * by_group + row * by_row;
        const float add = bias ? bias[line] : 0.0f;
        for (i64 j = (i64)blockIdx.x * 256 + threadIdx.x; j < s.n; j += (i64)gridDim.x * 256) {
            i64 p = j;
            const i64 image = digits.image(p);
            int x[D];
            digits.decode((unsigned)p, x);
            i64 to = 0;
#pragma unroll
            for (int d = 0; d < D; ++d) {
                x[d] = x[d] * axes.axis[d].step + axes.axis[d].first;
                to = to * axes.axis[d].source + x[d];
            }
            const float* from = source + image * s.image + group * channels * s.plane + to;
            float sum = 0.0f, chain = 0.0f;
            int left = CHUNK;
            bool first = true;
            for (int c = 0; c < channels; ++c) {
                const float* k = kernel + c * by_channel;
#pragma unroll 4
                for (int t = 0; t < taps; ++t) {
                    const int* see = table + t * (D + 1);
                    bool there = true;
#pragma unroll
                    for (int d = 0; d < D; ++d)
                        there = there && (unsigned)(x[d] + see[1 + d]) < (unsigned)axes.axis[d].source;
                    chain = __fmaf_rn(k[places[t]], there ? from[see[0]] : 0.0f, chain);
                    if (--left == 0) {
                        sum = first ? chain : __fadd_rn(sum, chain);
                        first = false;
                        chain = 0.0f;
                        left = CHUNK;
                    }
                }
                from += s.plane;
            }
            if (left < CHUNK) sum = first ? chain : __fadd_rn(sum, chain);
            write<1>(out, image * s.out_image + line * s.out_plane + digits.place((unsigned)p),
                  bias ? __fadd_rn(sum, add) : sum EPILOGUE_ARGUMENT);
        }
    }
}

// Sums of nothing.
extern "C" __global__ void __launch_bounds__(256) ditto_conv_zero(float* __restrict__ out, i64 total) {
    for (i64 e = (i64)blockIdx.x * 256 + threadIdx.x; e < total; e += (i64)gridDim.x * 256) out[e] = 0.0f;
}

// Adds the parts of a convolution whose chunks ran in separate blocks, in increasing order, then the bias.
// partial: [parts][total]; out: [total] = [images][channels][plane]; bias: [channels] or null.
extern "C" __global__ void __launch_bounds__(256)
ditto_conv_reduce(const float* __restrict__ partial, float* __restrict__ out, const float* __restrict__ bias,
                  i64 total, i64 parts, i64 channels, i64 plane EPILOGUE_PARAM) {
    for (i64 e = (i64)blockIdx.x * 256 + threadIdx.x; e < total; e += (i64)gridDim.x * 256) {
        float sum = partial[e];
#pragma unroll 8
        for (i64 p = 1; p < parts; ++p) sum = __fadd_rn(sum, partial[p * total + e]);
        if (bias) {
            const i64 channel =
                total >> 31 ? e / plane % channels : (unsigned)e / (unsigned)plane % (unsigned)channels;
            sum = __fadd_rn(sum, bias[channel]);
        }
        write<1>(out, e, sum EPILOGUE_ARGUMENT);
    }
}

#else

// Copies 4 bytes to shared memory in the background, if bit i of mask is set: those at src, of which `bytes` (0 or
// 4) are read, and then zeros.
__device__ __forceinline__ void copy_or_zero(unsigned dst, const float* src, int bytes, unsigned mask, int i) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; @p cp.async.ca.shared.global [%0], [%1], 4, %2;}"
                 ::"r"(dst), "l"(src), "r"(bytes), "r"(mask & 1u << i));
}

// The same without a choice: those at src if `there` is not 0, or zeros.
__device__ __forceinline__ void copy_if(unsigned dst, const float* src, unsigned there) {
    asm volatile("{.reg .pred p; setp.eq.b32 p, %2, 0; cp.async.ca.shared.global [%0], [%1], 4, p;}"
                 ::"r"(dst), "l"(src), "r"(there));
}

// Below, an empty asm keeps the start of the source in registers: the compiler would compute it again for every copy.

#if DITTO_CONV == 1

static_assert(LB == ROWS_LAST, "columns are copied along the positions");

// The view's way to shared memory: columns are positions of all images, k is (channel, tap).
//
// Copies: a warp copies whole lines of columns of one k, a lane every 32nd column; the next k of a warp is WARPS
// further. So a thread has SLOTS columns for good, and steps from k to k by counting taps and channels, without a
// division.
struct Columns : Tile<BN, TN, ROWS_LAST, false> {
    static constexpr int WARPS = THREADS / 32, SLOTS = BN / 32, PASSES = BK / WARPS * SLOTS;
    static_assert(BN % 32 == 0 && BK % WARPS == 0 && PASSES <= 32, "a warp copies whole lines");

    off src[SLOTS];  // where tap 0 of the columns' positions lies in the first channel
#if DITTO_FEW
    unsigned seen[SLOTS];  // bit t + 2: tap t lies in the source
#else
    int x0[SLOTS][D];  // where tap 0 lies along each axis; far outside for a column that is not
#endif
    int tap;      // the next one,
    off channel;  // and where its channel starts
    const float* base;
    // The kernel's arguments.
    const Sizes& s;
    const Axes& axes;
    const Few& few;
    const int* table;

    __device__ __forceinline__ Columns(const Sizes& s, const Axes& axes, const Few& few, const int* table)
        : s(s), axes(axes), few(few), table(table) {}

    __device__ __forceinline__ void begin(const float* base_, idx col0, idx k0, int k_left) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        base = base_;
        asm("" : "+l"(base));
        const i64 k = (i64)k0 + warp, c0 = k >> 31 ? k / s.taps : (unsigned)k / (unsigned)s.taps;
        tap = (int)(k - c0 * s.taps);
        channel = (off)(c0 * s.plane);
        const Digits digits(s.positions, axes);
#pragma unroll
        for (int c = 0; c < SLOTS; ++c) {
            i64 j = (i64)col0 + lane + c * 32;
            const bool in = j < s.n;
            j = in ? j : 0;
            const i64 image = digits.image(j);
            int p[D];
            digits.decode((unsigned)j, p);
            off to = 0;
#if DITTO_FEW
            unsigned all = in ? 0x3fffffffu : 0;
            int next = 0;
#endif
#pragma unroll
            for (int d = 0; d < D; ++d) {
                const Axis& a = axes.axis[d];
                const int x = p[d] * a.step + a.first;
                to = to * a.source + x;
#if DITTO_FEW
                unsigned some = 0;
#pragma unroll 1
                for (int t = 0; t < a.taps; ++t) {
                    const unsigned bits = few.pattern[next++];
                    if ((unsigned)(x + t * a.tap_step) < (unsigned)a.source) some |= bits;
                }
                all &= some;
#else
                x0[c][d] = in ? x : -0x40000000;
#endif
            }
#if DITTO_FEW
            seen[c] = all << 2;
#endif
            src[c] = (off)(image * s.image) + to;
        }
        dst = (warp * PITCH + lane) * 4;
        full = 0xffffffffu;
        tail = 0;
#pragma unroll
        for (int i = 0; i < PASSES; ++i) tail |= (unsigned)(warp + i / SLOTS * WARPS < k_left) << i;
    }

    __device__ __forceinline__ void fetch(unsigned stage, unsigned mask, int from, int to) {
#pragma unroll
        for (int i = 0; i < PASSES; ++i) {
            if (i < from || i >= to) continue;
            const int c = i % SLOTS;
#if DITTO_FEW
            const off offset = channel + few.offset[tap];
            const int bytes = seen[c] >> tap & 4;
#else
            const int* line = table + tap * (D + 1);
            const off offset = channel + __ldg(line);
            bool there = true;
#pragma unroll
            for (int d = 0; d < D; ++d)
                there = there && (unsigned)(x0[c][d] + __ldg(line + 1 + d)) < (unsigned)axes.axis[d].source;
            const int bytes = there ? 4 : 0;
#endif
            copy_or_zero(stage + dst + (i / SLOTS * WARPS * PITCH + c * 32) * 4, base + (off)(src[c] + offset),
                         bytes, mask, i);
            if (c < SLOTS - 1) continue;
            tap += (int)s.tap_digit;
            const bool next = tap >= (int)s.taps;
            channel += (off)s.channel_digit + (next ? (off)s.plane : 0);
            tap -= next ? (int)s.taps : 0;
        }
    }
};

#if DITTO_EPILOGUE
#define EPILOGUE_HERE , const float* whole, const Epilogue* epilogue_with
#define EPILOGUE_HERE_ARGUMENTS , out, &epilogue_with
#else
#define EPILOGUE_HERE
#define EPILOGUE_HERE_ARGUMENTS
#endif

// Adds a chunk to what earlier ones left in the result, then, after the last one, the rows' bias, and writes
// it. Columns are positions of all images, which lie where the view says; one group of them after the other, so that
// few of their places are in registers at a time.
__device__ __forceinline__ void store_columns(const float (&acc)[TM][TN], const Sizes& s, const Axes& axes, Origin o,
                                              float* out, const float* bias, bool has_bias, bool first,
                                              bool last EPILOGUE_HERE) {
    constexpr int W = DITTO_VC ? VN : 1, COLS = TN / W, BATCH = TM < 4 ? TM : 4;
    hide(o);
    const Digits digits(s.positions, axes);
    const idx row0 = o.row0 + o.tm, rows = (idx)s.m - row0;
    float* const line = out + (i64)row0 * s.out_plane;
#pragma unroll
    for (int c = 0; c < COLS; ++c) {
        i64 j = (i64)o.col0 + o.tn + col_at(c * W);
        const bool here = j < s.n;
        j = here ? j : 0;
        const i64 image = digits.image(j);
        float* const to = line + image * s.out_image + digits.place((unsigned)j);
#pragma unroll
        for (int i0 = 0; i0 < TM; i0 += BATCH) {
            Vec<W> old[BATCH];
            Vec<1> add[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                const int row = row_at(i0 + b);
                const bool in = here && row < rows;
#pragma unroll
                for (int e = 0; e < W; ++e) old[b].v[e] = -0.0f;
                add[b].v[0] = -0.0f;
                load_if(old[b], to + row * s.out_plane, in && !first);
                load_if(add[b], bias + (row0 + row), in && last && has_bias);
            }
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                const int row = row_at(i0 + b);
                const bool in = here && row < rows;
#pragma unroll
                for (int e = 0; e < W; ++e)
                    old[b].v[e] = finish(__fadd_rn(old[b].v[e], acc[i0 + b][c * W + e]), add[b].v[0]);
#if DITTO_EPILOGUE
                if (last) epilogue_here<W>(old[b], to + row * s.out_plane - whole, epilogue_with, in);
#endif
                store_if(old[b], to + row * s.out_plane, in);
            }
        }
    }
}

#if !DITTO_VC
// The last chunk, where columns lie anywhere: as `store_columns`, but spread over the threads, so that a warp has 32
// neighbouring columns of a row together, and a lane every 32nd column. (Before, the next chunk's copies are in the
// shared memory that this takes.)
template <int ROOM>
__device__ __forceinline__ void store_spread(float* shared, const float (&acc)[TM][TN], const Sizes& s, const Axes& axes,
                                             Origin o, float* out, const float* bias, bool has_bias, bool first EPILOGUE_HERE) {
    typedef Spread<ROOM> spread;
    constexpr int SLOTS = Columns::SLOTS, WARPS = Columns::WARPS;
    int thread = threadIdx.x;
    hide(thread);
    hide(o);
    const int lane = thread & 31, warp = thread >> 5;
    const Digits digits(s.positions, axes);
    float* to[SLOTS];
    unsigned cols = 0;  // bit c: column c is in the result
#pragma unroll
    for (int c = 0; c < SLOTS; ++c) {
        i64 j = (i64)o.col0 + lane + c * 32;
        const bool here = j < s.n;
        j = here ? j : 0;
        const i64 image = digits.image(j);
        to[c] = out + image * s.out_image + digits.place((unsigned)j);
        cols |= (unsigned)here << c;
    }
#pragma unroll
    for (int part = 0; part < spread::PARTS; ++part) {
        spread::write(shared, acc, o, part);
#pragma unroll 2
        for (int q = warp; q < spread::LINES; q += WARPS) {
            const idx row = o.row0 + spread::row(q, part);
            const unsigned in = row < (idx)s.m ? cols : 0;
            const i64 line = row * s.out_plane;
            Vec<1> add, v[SLOTS];
            add.v[0] = -0.0f;
            load_if(add, bias + row, has_bias ? in : 0);
#pragma unroll
            for (int c = 0; c < SLOTS; ++c) {
                v[c].v[0] = -0.0f;
                load_if(v[c], to[c] + line, first ? 0 : in & 1u << c);
            }
#pragma unroll
            for (int c = 0; c < SLOTS; ++c) {
                const float sum = shared[q * spread::PITCH + lane + c * 32];
                v[c].v[0] = finish(__fadd_rn(v[c].v[0], sum), add.v[0]);
#if DITTO_EPILOGUE
                epilogue_here<1>(v[c], to[c] + line - whole, epilogue_with, in & 1u << c);
#endif
                store_if(v[c], to[c] + line, in & 1u << c);
            }
        }
    }
}
#endif

// A convolution: rows are output channels of a group, columns the positions of all images.
//
// Thread mapping: as the matrix product; blockIdx.z: group * part (grid-stride).
// a: the kernel, (m, k) or with DITTO_TA (k, m), groups a_group apart; source: [images][groups * channels][plane].
// out: [images][groups * m][out_plane], or as many as there are parts; bias: [groups * m], or null.
// table: of `ditto_conv_taps`, unless DITTO_FEW.
extern "C" __global__ void __launch_bounds__(THREADS, DITTO_BLOCKS)
ditto_conv(const float* __restrict__ a, const float* __restrict__ source, float* out,
           const float* __restrict__ bias, const int* __restrict__ table, const __grid_constant__ Sizes s,
           const __grid_constant__ Axes axes, const __grid_constant__ Few few EPILOGUE_PARAM) {
    __shared__ __align__(16) float shared[STAGES * (TileA::SIZE + Columns::SIZE)];
    const Origin o(s.m, s.n);
    const i64 channels = s.k / s.taps;

    for (i64 z = blockIdx.z; z < s.groups * s.parts; z += gridDim.z) {
        const i64 part = z / s.groups, group = z - part * s.groups;
        const idx k0 = (idx)(part * s.slice);
        const idx k = (idx)min(s.slice, s.k - part * s.slice);

        TileA ta;
        Columns tb(s, axes, few, table);
        ta.start(a + group * s.a_group, (idx)s.a_ld, o.row0, (idx)s.m, k0, k % BK, threadIdx.x);
        tb.begin(source + group * channels * s.plane, o.col0, k0, (int)(k % BK));

        product(shared, ta, tb, o, k, [&](const float (&acc)[TM][TN], bool first, bool last) {
            // Found again, rather than in registers all the time.
            i64 here = z;
            hide(here);
            const i64 part = here / s.groups, group = here - part * s.groups;
            float* to = out + part * (s.n / s.positions * s.out_image) + group * s.m * s.out_plane;
            const float* add = bias + group * s.m;
#if DITTO_EPILOGUE && EPILOGUE_TILE
            if (last) {
                const Digits digits(s.positions, axes);
                epilogue_tile<sizeof(shared) / 4>(shared, acc, o, [&](int row, int col) {
                    const i64 r = (i64)o.row0 + row;
                    i64 j = (i64)o.col0 + col;
                    const bool in = r < s.m && j < s.n;
                    j = in ? j : 0;
                    const i64 line = (group * s.m + r) * s.out_plane + digits.image(j) * s.out_image;
                    return Spot{in, line + digits.place((unsigned)j), 0, bias && in ? add + r : nullptr};
                }, out, first, epilogue_with);
                return;
            }
#elif !DITTO_VC
            if (last) {
                store_spread<sizeof(shared) / 4>(shared, acc, s, axes, o, to, add, bias != nullptr, first EPILOGUE_HERE_ARGUMENTS);
                return;
            }
#endif
            store_columns(acc, s, axes, o, to, add, bias != nullptr, first, last EPILOGUE_HERE_ARGUMENTS);
        });
    }
}

#else  // DITTO_CONV == 2

// A thread's place in a tile whose k is contiguous: one k of a stage, the same for both operands, and rows in
// passes.
template <int ROWS, int T> struct Terms : Tile<ROWS, T, K_CONTIGUOUS, false> {
    typedef Tile<ROWS, T, K_CONTIGUOUS, false> Base;
    static_assert(K_CONTIGUOUS == TRANSPOSED ? BK == 8 : THREADS % BK == 0, "a thread has one k of a stage");
    static __device__ __forceinline__ int my_row() {
        return Base::row_of(K_CONTIGUOUS == TRANSPOSED ? threadIdx.x >> 3 : threadIdx.x);
    }
    static __device__ __forceinline__ int my_k() {
        return K_CONTIGUOUS == TRANSPOSED ? threadIdx.x & 7 : Base::k_of(threadIdx.x);
    }
    __device__ __forceinline__ void masks(idx row0, idx rows, int k_left) {
        const int row = my_row(), k = my_k();
        this->dst = Base::at(row, k) * 4;
        this->full = this->tail = 0;
#pragma unroll
        for (int i = 0; i < Base::PASSES; ++i) {
            const bool in = row + Base::row_of(i * Base::ACROSS) < rows - row0;
            this->full |= (unsigned)in << i;
            this->tail |= (unsigned)(in && k < k_left) << i;
        }
    }
};

#if DITTO_FEW
// Taps along axis d, the most along any, and all. (Texts with functions that call themselves take seconds to compile.)
__device__ __forceinline__ constexpr int taps_of(int d) { return (int)((i64)DITTO_TAPS >> 5 * d & 31); }
constexpr int most_taps() {
    int most = 0;
    for (int d = 0; d < D; ++d) most = taps_of(d) > most ? taps_of(d) : most;
    return most;
}
constexpr int all_taps() {
    int all = 1;
    for (int d = 0; d < D; ++d) all *= taps_of(d);
    return all;
}
constexpr int MOST_ALONG = most_taps(), ALL_TAPS = all_taps();
#define TAPS_OF(d) taps_of(d)
#else
// A column of the kernel: where its channel and tap lie in the source, and how far along each axis.
struct __align__(DITTO_LONG || D < 2 ? 8 : 16) Tap {
    off offset;
    int shift[D];
};
#define TAPS_OF(d) axes.axis[d].taps
#define ALL_TAPS s.taps
#endif

// Where column `column` of the kernel, its channel and tap, lies in the source; `each(d, t)` is told its tap along each axis.
template <class Each>
__device__ __forceinline__ off column_at(const Sizes& s, const Axes& axes, i64 column, Each&& each) {
    const i64 channel = column >> 31 ? column / ALL_TAPS : (unsigned)column / (unsigned)ALL_TAPS;
    unsigned rest = (unsigned)(column - channel * ALL_TAPS);
    off offset = (off)(channel * s.plane), stride = 1;
#pragma unroll
    for (int d = D - 1; d >= 0; --d) {
        const unsigned q = rest / (unsigned)TAPS_OF(d);
        const int t = (int)(rest - q * TAPS_OF(d));
        each(d, t);
        offset += t * axes.axis[d].tap_step * stride;
        stride *= axes.axis[d].source;
        rest = q;
    }
    return offset;
}

// The view's way to shared memory: its rows are (channel, tap), its k is (image, position). From stage to stage
// the position steps on by BK, digit by digit, without a division.
struct View : Terms<BN, TN> {
    int at_[D];      // the position
    int image;
#if DITTO_FEW
    off offset[PASSES];             // of the columns of this thread's passes
    unsigned passes[D][MOST_ALONG];  // per axis and its taps, the bits of the passes whose tap lies there
#else
    const Tap* tap;  // of the tile's columns, from this thread's first on
#endif
    const float* base;
    // The kernel's arguments.
    const Sizes& s;
    const Axes& axes;

    __device__ __forceinline__ View(const Sizes& s, const Axes& axes) : s(s), axes(axes) {}

#if DITTO_FEW
    // Finds the columns of this thread.
    __device__ __forceinline__ void columns(idx col0) {
#pragma unroll
        for (int d = 0; d < D; ++d)
#pragma unroll
            for (int u = 0; u < MOST_ALONG; ++u) passes[d][u] = 0;
#pragma unroll
        for (int i = 0; i < PASSES; ++i) {
            const i64 column = min((i64)col0 + my_row() + row_of(i * ACROSS), s.n - 1);
            offset[i] = column_at(s, axes, column, [&](int d, int t) {
#pragma unroll
                for (int u = 0; u < MOST_ALONG; ++u) passes[d][u] |= (unsigned)(t == u) << i;
            });
        }
    }
#else
    // Writes the columns of the tile, and has this thread's.
    __device__ __forceinline__ void columns(Tap* taps, idx col0) {
        for (int j = threadIdx.x; j < BN; j += THREADS)
            taps[j].offset = column_at(s, axes, min((i64)col0 + j, s.n - 1),
                                       [&](int d, int t) { taps[j].shift[d] = t * axes.axis[d].tap_step; });
        __syncthreads();
        tap = taps + my_row();
    }
#endif
    __device__ __forceinline__ void begin(const float* base_, idx col0, idx k0, int k_left) {
        base = base_;
        asm("" : "+l"(base));
        const Digits digits(s.positions, axes);
        i64 k = (i64)k0 + my_k();
        image = (int)digits.image(k);
        digits.decode((unsigned)k, at_);
        masks(col0, (idx)s.n, k_left);
    }
    __device__ __forceinline__ void fetch(unsigned stage, unsigned mask, int from, int to) {
        int x[D];
        off inside = 0;
#pragma unroll
        for (int d = 0; d < D; ++d) {
            x[d] = at_[d] * axes.axis[d].step + axes.axis[d].first;
            inside = inside * axes.axis[d].source + x[d];
        }
        inside += (off)image * (off)s.image;
#if DITTO_FEW
        // What is not copied may as well become zeros.
#pragma unroll
        for (int d = 0; d < D; ++d) {
            unsigned some = 0;
#pragma unroll
            for (int t = 0; t < MOST_ALONG; ++t)
                if (t < taps_of(d) && (unsigned)(x[d] + t * axes.axis[d].tap_step) < (unsigned)axes.axis[d].source)
                    some |= passes[d][t];
            mask &= some;
        }
#endif
#pragma unroll
        for (int i = 0; i < PASSES; ++i) {
            if (i < from || i >= to) continue;
            const int dr = row_of(i * ACROSS);
#if DITTO_FEW
            copy_if(stage + dst + at(dr, 0) * 4, base + (off)(inside + offset[i]), mask & 1u << i);
#else
            bool there = true;
#pragma unroll
            for (int d = 0; d < D; ++d)
                there = there && (unsigned)(x[d] + tap[dr].shift[d]) < (unsigned)axes.axis[d].source;
            copy_or_zero(stage + dst + at(dr, 0) * 4, base + (off)(inside + tap[dr].offset), there ? 4 : 0, mask, i);
#endif
        }
        if (to < PASSES) return;
        int carry = 0;
#pragma unroll
        for (int d = D - 1; d >= 0; --d) {
            at_[d] += axes.axis[d].digit + carry;
            carry = at_[d] >= axes.axis[d].positions;
            at_[d] -= carry ? axes.axis[d].positions : 0;
        }
        image += (int)s.digit + carry;
    }
};

// The gradient's way to shared memory: rows are its channels, its k is that of the view.
struct Upstream : Terms<BM, TM> {
    const Sizes& s;
    const View& view;  // which is stepped on after this

    __device__ __forceinline__ Upstream(const Sizes& s, const View& view) : s(s), view(view) {}

    __device__ __forceinline__ void begin(const float* base, idx row0, idx k0, int k_left) {
        src = base + (row0 + my_row()) * s.positions + k0 + my_k();
        masks(row0, (idx)s.m, k_left);
    }
    __device__ __forceinline__ void fetch(unsigned stage, unsigned mask, int from, int to) {
        // An image's channels lie between the last position of one image and the first of the next.
        const float* from_ = src + view.image * (s.out_image - s.positions);
#pragma unroll
        for (int i = 0; i < PASSES; ++i) {
            if (i < from || i >= to) continue;
            const int dr = row_of(i * ACROSS);
            copy<1>(stage + dst + at(dr, 0) * 4, from_ + dr * s.positions, mask, i);
        }
        if (to == PASSES) src += BK;
    }
};

// The gradient of a convolution's kernel: rows are output channels of a group, columns (channel, tap).
//
// Thread mapping: as the matrix product; blockIdx.z: group * part (grid-stride).
// g: [images][groups * m][positions]; source: [images][groups * channels][plane].
// out: [parts][groups][m][n].
extern "C" __global__ void __launch_bounds__(THREADS, DITTO_BLOCKS)
ditto_conv_grad(const float* __restrict__ g, const float* __restrict__ source, float* out,
                const __grid_constant__ Sizes s, const __grid_constant__ Axes axes) {
    __shared__ __align__(16) float shared[STAGES * (Upstream::SIZE + View::SIZE)];
    const Origin o(s.m, s.n);
    const i64 channels = s.n / s.taps;
    View tb(s, axes);
#if DITTO_FEW
    tb.columns(o.col0);
#else
    __shared__ Tap taps[BN];
    tb.columns(taps, o.col0);
#endif

    for (i64 z = blockIdx.z; z < s.groups * s.parts; z += gridDim.z) {
        const i64 part = z / s.groups, group = z - part * s.groups;
        const idx k0 = (idx)(part * s.slice);
        const idx k = (idx)min(s.slice, s.k - part * s.slice);

        Upstream ta(s, tb);
        tb.begin(source + group * channels * s.plane, o.col0, k0, (int)(k % BK));
        ta.begin(g + group * s.m * s.positions, o.row0, k0, (int)(k % BK));

        product(shared, ta, tb, o, k, [&](const float (&acc)[TM][TN], bool first, bool last) {
            // Found again, rather than in registers all the time.
            i64 here = z;
            Origin from = o;
            hide(here);
            hide(from);
            Place at;
            at.ldc = (idx)s.n;
            at.out = out + here * (s.m * s.n) + (i64)(from.row0 + from.tm) * s.n + from.col0 + from.tn;
            at.rows = (idx)s.m - from.row0 - from.tm;
            at.cols = (idx)s.n - from.col0 - from.tn;
            at.bias = nullptr;
            store(acc, at, first, last);
        });
    }
}

#endif
#endif
