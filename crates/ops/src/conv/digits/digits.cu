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
//   DITTO_NEIGHBOURS  1: rows of the kernel lie next to each other, as those of a transposed convolution do
//   DITTO_LINES       channels of an image of the source whose digits a block of threads makes: a power of two up to 32
//   DITTO_TAPS        taps along the innermost axis whose digits a thread makes together: all of them if they are 1 apart, or 1
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
//   DITTO_INTERLEAVE  groups of 16 terms of a column that lie next to each other: 1, 2, or 4
//   DITTO_AXES        of an image, at most
//   DITTO_CLASSES     of a convolution: those that are computed together, see below
//
// Group q of k, 16 terms, lies `table[q]` bytes from where its column begins, so taps and images need no arithmetic here:
//   of a convolution  k is (tap, channel). The digits of an image lie in a box, an interleaved layout: [item][digit][channels / E][position][E], where E is
//                     16 INTERLEAVE. Its positions include all that taps read beyond the image, as zeros. An item is a group of an image. A tap
//                     is an offset.
//   of a gradient     k is (image, line, place in the line), lines of an image padded to 16 places. The source is copied once for each tap
//                     along the innermost axis, [tap][image][channel][digit][line][place], so that all groups are aligned. The taps along
//                     the other axes are offsets of lines, which again include those beyond the image.
// A transposed convolution with strides is several convolutions, classes of its positions. They read one box and have rows of one kernel, and
// differ in taps and in where results lie. A tile is of one class, so that all of them are one launch.
// The rows' digits are [item][block][digit][pitch][KB], as those of matrix products. A block is 4 groups, the last one filled up with zeros.

constexpr int INTERLEAVE = DITTO_INTERLEAVE;

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
