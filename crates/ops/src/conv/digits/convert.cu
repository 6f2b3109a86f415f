// Parts 0 to 2: the largest magnitudes, and the digits of both operands.

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

// The digits of a part of a box: a warp has 32 / INTERLEAVE places and 16 INTERLEAVE channels, so that it writes whole lines.
__device__ __forceinline__ void part_of_box(const Boxes& s, const Axes& axes, unsigned index) {
    // There are fewer than 2^31 blocks of threads.
    const unsigned chunks = (unsigned)s.padded / 16, columns = ((unsigned)s.box * INTERLEAVE + 31) / 32, each = (columns * (chunks / INTERLEAVE) + 7) / 8;
    const unsigned unit = index % each * 8 + threadIdx.x / 32;
    const i64 item = index / each;
    const unsigned channels = (unsigned)s.images.channels / (unsigned)s.groups;
    const unsigned first = unit / columns * INTERLEAVE, chunk = first + threadIdx.x % INTERLEAVE;
    const i64 place = ((unit - unit / columns * columns) * 32 + threadIdx.x % 32) / INTERLEAVE;
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
    put(x, scale_of(e), s.digits + (item * DIGITS * s.padded + first * 16) * s.box + (place * INTERLEAVE + threadIdx.x % INTERLEAVE) * 16, s.box * s.padded);
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
        s.table[c.table + q] = tap < c.taps ? ((c.axes.tap(tap) + q % chunks / INTERLEAVE * s.box) * INTERLEAVE + q % INTERLEAVE) * 16 : 0;
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

#endif
