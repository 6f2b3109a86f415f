// Convolutions in digits, and the gradients of their kernels: modes `fast` and `turbo`, the same bits as the CPU.
//
// They are products whose sums run over k in any order, since sums of digits are exact. Rows are output channels of a group; columns are
// (image, position), or for the gradient of a kernel (channel, tap). Kernels follow each other:
//   ditto_conv_magnitudes                        the largest magnitude of each channel of an image, unless who wrote the image has left it
//   ditto_conv_digits, ditto_conv_grad_digits    the digits of both operands, and the table of k
//   ditto_conv_product                           the product
//
// This text is compiled at run time behind a few `#define` lines that pick one variant:
//   DITTO_PART        0: magnitudes; 1: the digits of a convolution; 2: those of a kernel's gradient; 3: the product
//   DITTO_DIGITS      digits of a number: 3 in `fast`, 2 in `turbo`
//   LEAST_EXPONENT    the contract's
//   DITTO_VECTOR      1: channels are aligned and multiples of 4 long
//   DITTO_WARPS       warps that find the largest magnitude of a channel: 1 or 8
//   DITTO_ROWS        rows of a kernel or a gradient whose digits a block of threads makes: 1, 2 or 4
//   DITTO_NEIGHBOURS   1: rows of the kernel lie next to each other, as those of a transposed convolution do
//   DITTO_LINES       channels of an image of the source whose digits a block of threads makes: a power of two up to 32
//   DITTO_TAPS        taps along the innermost axis whose digits a thread makes together: all of them if they and positions are 1 apart, or 1
//   DITTO_STEP        elements from one place to the next, 1 or 2, of which a thread reads all between its places; 0: only what it wants
//   DITTO_BEFORE      the tap that reads the element with which a place begins
//   DITTO_FOURS       1: there is one, and lines of the source are multiples of 4 long
//   DITTO_PACKED      1: lines of two axes would leave much of 16 places empty, so that all positions are one line of as many taps as there are in all
//   DITTO_GRAD        1: the product is the gradient of a kernel
//   DITTO_HOPPER      1: `wgmma`, which compute capability 9.0 has; 0: `mma.sync`
//   DITTO_WM, _WN     of a tile, down and across: warps, or with `wgmma` warp groups, one across
//   DITTO_ACROSS      with `wgmma`: columns of a tile, 96 or in `turbo` also 128
//   DITTO_STAGES      blocks of digits in shared memory
//   DITTO_VC          1: 16-byte stores of the product's results: lines of results are multiples of 4
//   DITTO_WIDE        1: results have 2^31 places or more
//   DITTO_U           groups of 16 terms of a column that lie next to each other: 1, 2, or 4
//   DITTO_AXES        of an image, at most
//   DITTO_CLASSES     of a convolution: those that are computed together, see below
//
// Group q of k, 16 terms, lies `table[q]` bytes from where its column begins, so taps and images need no arithmetic here:
//   of a convolution  k is (tap, channel). The digits of an image lie in a box, [item][digit][U groups of channels][position][U groups], whose positions
//                     include all that taps read beyond the image, as zeros. An item is a group of an image. A tap is an offset.
//   of a gradient     k is (image, line, place in the line), lines of an image padded to 16 places. The source is copied once for each tap
//                     along the innermost axis, [tap][image][channel][digit][line][place], so that all groups are aligned. The taps along
//                     the other axes are offsets of lines, which again include those beyond the image.
// A transposed convolution with strides is several convolutions, classes of its positions. They read one box and have rows of one kernel, and
// differ in taps and in where results lie. A tile is of one class, so that all of them are one launch.
// The rows' digits are [item][block][digit][pitch][KB], as those of matrix products. A block is 4 groups, the last one filled up with zeros.

constexpr int U = DITTO_U;

struct Axis {
    i64 positions, step, taps, first, tap_step, source;  // position p and tap t read element (p * step) * scale + first + t * tap_step
    i64 low, scale, extent, stride;                      // the box: its first element, elements from place to place, its size, and its stride
    i64 out_first, out_step, out;                        // of the result
    i64 w_first, w_step, w;                              // of the kernel
};

struct Axes {
    i64 rank;  // or with one axis less, if the innermost one is apart
    Axis axis[DITTO_AXES];

    // Where a tap reads in the box for position 0.
    __device__ __forceinline__ i64 tap(unsigned tap) const {
        i64 at = 0;
        for (int d = (int)rank - 1; d >= 0; --d) {
            const Axis& a = axis[d];
            at += (a.first + (i64)(tap % (unsigned)a.taps) * a.tap_step - a.low) * a.stride;
            tap /= (unsigned)a.taps;
        }
        return at;
    }
    // Where a tap lies in the kernel.
    __device__ __forceinline__ i64 weight(unsigned tap) const {
        i64 at = 0, stride = 1;
        for (int d = (int)rank - 1; d >= 0; --d) {
            const Axis& a = axis[d];
            at += (a.w_first + (i64)(tap % (unsigned)a.taps) * a.w_step) * stride;
            tap /= (unsigned)a.taps;
            stride *= a.w;
        }
        return at;
    }
    // Where a position lies in the box, without its tap, and where its result lies in a channel.
    struct Place { i64 box, result; };
    __device__ __forceinline__ Place place(unsigned p) const {
        Place at = {0, 0};
        i64 stride = 1;
        for (int d = (int)rank - 1; d >= 0; --d) {
            const Axis& a = axis[d];
            const unsigned next = p / (unsigned)a.positions;
            const i64 x = p - next * (unsigned)a.positions;
            at.box += x * a.step * a.stride;
            at.result += (a.out_first + x * a.out_step) * stride;
            stride *= a.out;
            p = next;
        }
        return at;
    }
    // The element of the source at place b of the box; -1 if there is none.
    __device__ __forceinline__ i64 source(unsigned b) const {
        i64 at = 0, stride = 1;
        bool in = true;
        for (int d = (int)rank - 1; d >= 0; --d) {
            const Axis& a = axis[d];
            const unsigned next = b / (unsigned)a.extent;
            const int x = (int)(b - next * (unsigned)a.extent) * (int)a.scale + (int)a.low;
            in = in && (unsigned)x < (unsigned)a.source;
            at += x * stride;
            stride *= a.source;
            b = next;
        }
        return in ? at : -1;
    }
};

// A convolution: its taps in all, blocks of k, where its rows' digits and its table begin, and its axes. For a gradient there is one.
struct Class {
    i64 taps, blocks, digits, table;
    Axes axes;
};
struct Classes { Class each[DITTO_CLASSES]; };

#if DITTO_PART < 3

// Images of some channels, as given.
struct Images {
    const float* x;
    i64 channels, plane;         // of all groups, and the floats of a channel
    const unsigned* magnitudes;  // [image][channel]
    i64 lines;                   // images * channels
};

// The largest of `count` magnitudes, `stride` apart, for all of so many neighbouring lanes. The whole warp calls it.
template <int LANES> __device__ __forceinline__ unsigned largest_of(const unsigned* x, i64 count, i64 stride) {
    unsigned largest = 0;
    for (i64 i = threadIdx.x % LANES; i < count; i += LANES) largest = max(largest, x[i * stride]);
#pragma unroll
    for (int o = LANES / 2; o > 0; o /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, o));
    return largest;
}

// Writes 16 bytes of each digit of every STEP-th of some numbers, `apart` bytes from one digit to the next.
template <int STEP = 1> __device__ __forceinline__ void put(const float* x, float scale, unsigned char* to, i64 apart) {
    unsigned words[4][DIGITS];
#pragma unroll
    for (int i = 0; i < 4; ++i) split({x[i * 4 * STEP], x[(i * 4 + 1) * STEP], x[(i * 4 + 2) * STEP], x[(i * 4 + 3) * STEP]}, scale, words[i]);
#pragma unroll
    for (int d = 0; d < DIGITS; ++d) *(uint4*)(to + d * apart) = make_uint4(words[0][d], words[1][d], words[2][d], words[3][d]);
}

#endif

#if DITTO_PART == 0

// A warp has a channel of an image, or if channels are long, all warps of a block have.
extern "C" __global__ void __launch_bounds__(256) ditto_conv_magnitudes(const __grid_constant__ Images s, unsigned* magnitudes) {
    constexpr int WARPS = DITTO_WARPS, STEP = 32 * WARPS;
    const i64 line = (i64)blockIdx.x * (8 / WARPS) + threadIdx.x / STEP;
    const i64 length = line < s.lines ? s.plane : 0;
    const float* from = s.x + line * s.plane;
    float m = 0.0f;
#pragma unroll 4
    for (i64 at = threadIdx.x % STEP * 4; at < length; at += STEP * 4) m = larger(m, quad<DITTO_VECTOR>(from, at, length));
    leave_magnitude<WARPS>(m, magnitudes + line, line < s.lines);
}

#elif DITTO_PART == 1

struct Boxes {
    Images images;
    i64 groups, padded, box;  // channels of a group, rounded up to 16; places of a box
    int* exponents;           // [item]
    unsigned char* digits;
    i64* table;
};

struct Kernel {
    const float* w;
    i64 groups, rows, pitch, channels;
    i64 by_group, by_row, by_channel, plane;  // strides, and the floats of a pair of channels
    int* exponents;                           // [group][pitch]
    unsigned char* digits;
};

#if DITTO_NEIGHBOURS

// The digits of some rows of a class's kernel, which a block of threads has. Lanes read along rows and taps.
__device__ __forceinline__ void rows_of_kernel(const Kernel& w, const Boxes& s, const Class& c, i64 index) {
    constexpr unsigned ROWS = DITTO_ROWS;
    const i64 group = index / w.pitch, row = index % w.pitch;
    const float* const from = w.w + group * w.by_group + row * w.by_row;
    const unsigned plane = (unsigned)w.plane, run = ROWS * plane, rows = (unsigned)max(min(w.rows - row, (i64)ROWS), (i64)0);
    __shared__ unsigned largest[ROWS], places[64];
    if (threadIdx.x < ROWS) largest[threadIdx.x] = 0;
    // Where the first taps are.
    if (threadIdx.x < min(64u, (unsigned)c.taps)) places[threadIdx.x] = (unsigned)c.axes.weight(threadIdx.x);
    __syncthreads();
    const unsigned lines = 256 / run, at = threadIdx.x % run;
    if (threadIdx.x < lines * run && at < rows * plane) {
        float m = 0.0f;
#pragma unroll 16
        for (unsigned channel = threadIdx.x / run; channel < (unsigned)w.channels; channel += lines) m = larger(m, from[channel * w.by_channel + at]);
        atomicMax(largest + at / plane, __float_as_uint(m));
    }
    __syncthreads();
    if (threadIdx.x < ROWS) w.exponents[index + threadIdx.x] = exponent_of(largest[threadIdx.x]);
    // 16 channels of a row's tap at a time, then the groups that fill up the last block.
    const unsigned chunks = (unsigned)s.padded / 16, taps = (unsigned)c.taps, real = chunks * taps * ROWS, units = (unsigned)c.blocks * 4 * ROWS;
    for (unsigned unit = threadIdx.x; unit < units; unit += 256) {
        const bool is_real = unit < real;
        const unsigned chunk = unit / (taps * ROWS), rest = unit - chunk * (taps * ROWS);
        const unsigned r = is_real ? rest / taps : unit % ROWS, tap = rest - rest / taps * taps, q = is_real ? tap * chunks + chunk : unit / ROWS;
        const int count = is_real && r < rows ? (int)w.channels - (int)chunk * 16 : 0;
        const float* own = from + r * w.by_row + (tap < 64 ? places[tap] : c.axes.weight(tap)) + chunk * 16 * w.by_channel;
        float x[16];
#pragma unroll
        for (int i = 0; i < 16; ++i, own += w.by_channel) x[i] = i < count ? *own : 0.0f;
        unsigned char* to = w.digits + c.digits + ((group * c.blocks + q / 4) * DIGITS * w.pitch + row + r) * KB + word_at(row + r, (int)(q % 4 * 4));
        put(x, scale_of(exponent_of(largest[r])), to, w.pitch * KB);
    }
}

#else

// The digits of a row of a class's kernel: a block of threads has it.
__device__ __forceinline__ void rows_of_kernel(const Kernel& w, const Boxes& s, const Class& c, i64 index) {
    const i64 group = index / w.pitch, row = index % w.pitch;
    const float* from = w.w + group * w.by_group + row * w.by_row;
    const bool in = row < w.rows;
    // Where the first taps are.
    __shared__ unsigned places[64];
    if (threadIdx.x < min(64u, (unsigned)c.taps)) places[threadIdx.x] = (unsigned)c.axes.weight(threadIdx.x);
    float m = 0.0f;
    // A row has fewer than 2^32 numbers.
    const unsigned plane = (unsigned)w.plane, numbers = in ? (unsigned)w.channels * plane : 0;
    for (unsigned i = threadIdx.x; i < numbers; i += 256) m = larger(m, from[i / plane * w.by_channel + i % plane]);
    const int e = exponent_of(largest_of_block(largest_of_warp(m)));
    const float scale = scale_of(e);
    if (threadIdx.x == 0) w.exponents[index] = e;
    for (unsigned word = threadIdx.x; word < (unsigned)c.blocks * (KB / 4); word += 256) {
        const unsigned tap = word * 4 / (unsigned)s.padded, channel = word * 4 % (unsigned)s.padded;
        Quad x = {};
        if (in && tap < (unsigned)c.taps) {
            const float* at = from + (tap < 64 ? places[tap] : c.axes.weight(tap)) + channel * w.by_channel;
#pragma unroll
            for (int i = 0; i < 4; ++i, at += w.by_channel)
                if (channel + i < (unsigned)w.channels) x.v[i] = *at;
        }
        unsigned digits[DIGITS];
        split(x, scale, digits);
        unsigned char* to = w.digits + c.digits + ((group * c.blocks + word / 16) * DIGITS * w.pitch + row) * KB + word_at(row, (int)(word % 16));
#pragma unroll
        for (int d = 0; d < DIGITS; ++d) *(unsigned*)(to + d * w.pitch * KB) = digits[d];
    }
}

#endif

// The digits of a part of a box: a warp has 32 / U places and 16 U channels, so that it writes whole lines.
__device__ __forceinline__ void part_of_box(const Boxes& s, const Axes& axes, unsigned index) {
    // There are fewer than 2^31 blocks of threads.
    const unsigned chunks = (unsigned)s.padded / 16, columns = ((unsigned)s.box * U + 31) / 32, each = (columns * (chunks / U) + 7) / 8;
    const unsigned unit = index % each * 8 + threadIdx.x / 32;
    const i64 item = index / each;
    const unsigned channels = (unsigned)s.images.channels / (unsigned)s.groups;
    const unsigned first = unit / columns * U, chunk = first + threadIdx.x % U;
    const i64 place = ((unit - unit / columns * columns) * 32 + threadIdx.x % 32) / U;
    const i64 at = place < s.box ? axes.source((unsigned)place) : -1;
    const float* from = s.images.x + (item * channels + chunk * 16) * s.images.plane + at;
    const int count = at >= 0 ? (int)channels - (int)chunk * 16 : 0;
    // The numbers are under way while the scale is found.
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i, from += s.images.plane) x[i] = i < count ? *from : 0.0f;
    const unsigned* const magnitudes = s.images.magnitudes + item * channels;
    unsigned largest = 0;
    for (unsigned i = threadIdx.x; i < channels; i += 256) largest = max(largest, magnitudes[i]);
    const int e = exponent_of(largest_of_block(__reduce_max_sync(~0u, largest)));
    if (unit == 0 && threadIdx.x == 0) s.exponents[item] = e;
    if (place >= s.box || chunk >= chunks) return;
    put(x, scale_of(e), s.digits + (item * DIGITS * s.padded + first * 16) * s.box + (place * U + threadIdx.x % U) * 16, s.box * s.padded);
}

// Blocks: for each class one for the table of k, then one for each DITTO_ROWS rows of its kernel; then those for the images.
extern "C" __global__ void __launch_bounds__(256)
ditto_conv_digits(const __grid_constant__ Boxes s, const __grid_constant__ Kernel w, const __grid_constant__ Classes classes) {
    const i64 of_class = 1 + w.groups * w.pitch / DITTO_ROWS, index = blockIdx.x;
    if (index >= DITTO_CLASSES * of_class) return part_of_box(s, classes.each[0].axes, (unsigned)(index - DITTO_CLASSES * of_class));
    const Class& c = classes.each[DITTO_CLASSES > 1 ? index / of_class : 0];
    const i64 rows = index % of_class - 1;
    if (rows >= 0) return rows_of_kernel(w, s, c, rows * DITTO_ROWS);
    const unsigned chunks = (unsigned)s.padded / 16;
    for (unsigned q = threadIdx.x; q < (unsigned)c.blocks * 4; q += 256) {
        const unsigned tap = q / chunks;
        s.table[c.table + q] = tap < c.taps ? ((c.axes.tap(tap) + q % chunks / U * s.box) * U + q % U) * 16 : 0;
    }
}

#elif DITTO_PART == 2

// Of the gradient of a kernel: both operands, and how they lie.
struct Grad {
    Images g, source;
    i64 images, run;                         // images in all, and of a run that shares scales
    i64 groups, rows, pitch, blocks;         // rows of a group; blocks of a run
    i64 lines, width;                        // output lines of an image, and their places, rounded up to 16
    i64 box;                                 // lines of a channel's copy
    int *g_exponents, *source_exponents;     // [run][group][pitch], [run][channel]
    unsigned char *g_digits, *copies;
    i64* table;
};

// COUNT numbers of a line of `length`, `step` apart from element `begin` on; 0 where there is none. `fours`: steps are 1, length and begin + BEFORE
// are multiples of 4, and the line begins at a multiple of 16 bytes, so that numbers from the one with number BEFORE on are read four at a time.
template <int BEFORE, int COUNT>
__device__ __forceinline__ void numbers(float (&x)[COUNT], const float* line, int begin, int length, int step, bool fours) {
    auto one = [&](int at) { return (unsigned)at < (unsigned)length ? line[at] : 0.0f; };
    if (fours) {
        constexpr int END = BEFORE + (COUNT - BEFORE) / 4 * 4;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (i < BEFORE || i >= END) x[i] = one(begin + i);
#pragma unroll
        for (int i = BEFORE; i < END; i += 4) {
            const Quad four = quad<1>(line, begin + i, length);
#pragma unroll
            for (int j = 0; j < 4; ++j) x[i + j] = four.v[j];
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) x[i] = one(begin + i * step);
    }
}

#if DITTO_PACKED
// What a tap reads for 16 neighbouring positions of two axes.
template <int COUNT> __device__ __forceinline__ void around(float (&x)[COUNT], const Axes& axes, unsigned tap, unsigned position, const float* channel) {
    const Axis &down = axes.axis[0], &across = axes.axis[1];
    const unsigned columns = (unsigned)across.positions, taps = (unsigned)across.taps;
    unsigned row = position / columns, column = position - row * columns;
    const int from_row = (int)down.first + (int)(tap / taps) * (int)down.tap_step, from_column = (int)across.first + (int)(tap % taps) * (int)across.tap_step;
    const int rows = (int)down.source, width = (int)across.source;
    const int down_step = (int)(down.step * down.scale), across_step = (int)(across.step * across.scale);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const int y = (int)row * down_step + from_row, z = (int)column * across_step + from_column;
        x[i] = row < (unsigned)down.positions && (unsigned)y < (unsigned)rows && (unsigned)z < (unsigned)width ? channel[y * width + z] : 0.0f;
        if (++column == columns) column = 0, ++row;
    }
}
#endif

__device__ __forceinline__ bool is_aligned(const Images& s) { return (u64)s.x % 16 == 0; }

// Blocks: one for the table of k, then one for each DITTO_ROWS rows of a run of the gradient, then one for each DITTO_LINES lines of the source,
// a channel of an image each. `inner`: the innermost axis, of which `axes` has none, or the line that all positions are.
extern "C" __global__ void __launch_bounds__(128)
ditto_conv_grad_digits(const __grid_constant__ Grad s, const __grid_constant__ Axes axes, const __grid_constant__ Axis inner) {
    // All counts are below 2^31. Rows are multiples of 8.
    const i64 runs = (s.images + s.run - 1) / s.run, rows = runs * s.groups * s.pitch, block = (i64)blockIdx.x - 1, of_rows = rows / DITTO_ROWS;
    const unsigned of_line = (unsigned)s.width / 16, of_image = (unsigned)s.lines * of_line;
    if (block < 0) {
        for (unsigned q = threadIdx.x; q < (unsigned)s.blocks * 4; q += 128) {
            const unsigned rest = q % of_image;
            const i64 image = q / of_image;
            s.table[q] = image * s.source.channels * DIGITS * s.box * s.width + axes.place(rest / of_line).box * s.width + rest % of_line * 16;
        }
    } else if (block < of_rows) {
        constexpr unsigned EACH = 128 / DITTO_ROWS;
        const i64 index = block * DITTO_ROWS + threadIdx.x / EACH;
        const unsigned thread = threadIdx.x % EACH;
        const i64 item = index / s.pitch, row = index % s.pitch, run = item / s.groups, group = item % s.groups;
        const i64 image = run * s.run, count = min(s.run, s.images - image), channel = group * s.rows + row;
        const bool in = row < s.rows, fours = (int)inner.positions % 4 == 0 && is_aligned(s.g);
        const unsigned units = (unsigned)s.blocks * 4;
        // Numbers are under way while their scale is found.
        float x[16];
        auto load = [&](unsigned q) {
            const unsigned of = q / of_image, rest = q - of * of_image, line = rest / of_line, place = (rest - line * of_line) * 16;
            const float* from = s.g.x + ((image + of) * s.g.channels + channel) * s.g.plane + line * inner.positions;
            numbers<0>(x, from, (int)place, in && of < count ? (int)inner.positions : 0, 1, fours);
        };
        unsigned q = thread;
        if (q < units) load(q);
        const int e = exponent_of(largest_of<32>(s.g.magnitudes + image * s.g.channels + channel, in ? count : 0, s.g.channels));
        if (thread == 0) s.g_exponents[index] = e;
        while (q < units) {
            unsigned char* to = s.g_digits + ((item * s.blocks + q / 4) * DIGITS * s.pitch + row) * KB + word_at(row, (int)(q % 4 * 4));
            put(x, scale_of(e), to, s.pitch * KB);
            if ((q += EACH) < units) load(q);
        }
    } else {
        constexpr unsigned EACH = 128 / DITTO_LINES;
        const i64 wanted = (block - of_rows) * DITTO_LINES + threadIdx.x / EACH, line = min(wanted, s.source.lines - 1);
        const unsigned thread = threadIdx.x % EACH;
        const i64 image = line / s.source.channels, channel = line % s.source.channels;
        const i64 run = image / s.run, begin = run * s.run, count = min(s.run, s.images - begin);
        const float* channel_at = s.source.x + line * s.source.plane;
        constexpr int TAPS = DITTO_TAPS;
        const bool fours = DITTO_FOURS && is_aligned(s.source);
        const unsigned boxes = (unsigned)s.box, units = wanted == line ? boxes * ((unsigned)inner.taps / TAPS) * of_line : 0;
        struct Unit { unsigned tap, box, place; };
        auto unit_at = [&](unsigned unit) {
            const unsigned rest = unit / of_line, taps = rest / boxes;
            return Unit{taps * TAPS, rest - taps * boxes, (unit - rest * of_line) * 16};
        };
        // What is read beyond the last position counts nothing, since the gradient's digits are zeros there.
        constexpr int STEP = DITTO_STEP > 0 ? DITTO_STEP : 1;
        float x[15 * STEP + TAPS];
        auto load = [&](const Unit& u) {
            const int begin = (int)(u.place * inner.step + inner.first + u.tap * inner.tap_step), step = DITTO_STEP > 0 ? 1 : (int)inner.step;
#if DITTO_PACKED
            around(x, axes, u.tap, u.place, channel_at);
            return;
#endif
            const i64 outer = axes.source(u.box);
            numbers<DITTO_BEFORE>(x, channel_at + outer * inner.source, begin, outer >= 0 ? (int)inner.source : 0, step, fours);
        };
        unsigned unit = thread;
        Unit u = unit_at(unit);
        if (unit < units) load(u);
        constexpr int LANES = EACH < 32 ? EACH : 32;
        const int e = exponent_of(largest_of<LANES>(s.source.magnitudes + begin * s.source.channels + channel, count, s.source.channels));
        if (thread == 0 && units > 0) s.source_exponents[run * s.source.channels + channel] = e;
        const i64 size = s.box * s.width;
        const i64 copy = s.images * s.source.channels * DIGITS * size;
        while (unit < units) {
            unsigned char* const to = s.copies + u.tap * copy + line * DIGITS * size + u.box * s.width + u.place;
#pragma unroll
            for (int t = 0; t < TAPS; ++t) put<STEP>(x + t, scale_of(e), to + t * copy, size);
            if ((unit += EACH) < units) load(u = unit_at(unit));
        }
    }
}

#else

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
    // Of a convolution: positions of an image, the bytes of U groups of channels of one, and the floats of a channel of the result.
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
        const int quarter = thread / (AT_ONCE * U) * U + thread % U, line = thread / U % AT_ONCE;
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
                const unsigned to_b = shared_address(to + SIZE_A) + place_in<BN, U>(line, quarter);
#pragma unroll
                for (int i = 0; i < PASSES; ++i)
#pragma unroll
                    for (int d = 0; d < DIGITS; ++d) copy_16(to_b + d * BN * KB + i * AT_ONCE * 16 * U, b[i] + offset + d * p.of_digit);
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
            multiply_stages<U, STAGES, STAGE>(sums, (int)tile.blocks, stage, phase, a, BM * KB, b, BN * KB, full, empty, thread == 0);
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
    const int quarter_b = thread / (AT_ONCE * U) * U + thread % U, line_b = thread / U % AT_ONCE;
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
                        if (r < BN) copy_16(to + SIZE_A + d * BN * KB + place_in<BN, U>(r, quarter_b), from_b[i] + d * p.of_digit + offset);
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
            multiply_block<BM, BN, U>(sums, from, from + SIZE_A, down, across);
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
