// Pooling over the last RANK axes, one thread per output element in a grid-stride loop, or per CELLS neighbouring elements.
//
// A tensor is seen as planes: the pooled axes make one plane, all other axes count planes. An element of a plane is a cell.
// The window of output o holds, along each axis, the cells o * stride - padding + k * dilation for k < kernel; those outside
// the plane are padding.
//
// This text is compiled after `#define` lines that pick one variant. The geometry is constant, so that loops over a
// window unroll; sizes of planes are arguments.
//   OP                 what is computed, one of the OP_ constants below
//   RANK               pooled axes
//   ADAPTIVE           1: the window of output o of m along an axis of n cells is [floor(o n / m), ceil((o + 1) n / m));
//                      0: KERNEL, STRIDE, PADDING, DILATION are lists of RANK numbers, outermost axis first
//   PADDED             1: some axis has padding, so cells may be outside the plane
//   UNROLL             1: loops over a window unroll fully; 0: not at all
//   COUNT_PADDING      averages: 1 if padding counts as cells
//   WIDE               1: a plane has 2^32 - 1 cells or more
//   CELLS              4: an output element is an input cell, and lines of the innermost axis are multiples of 4 long; 1 otherwise
// A program may follow the gradient of maxima, see `results.cu`.
// The smooth ops also need device functions, generated from the same formulas as the CPU's: `finite_shift`, `shifted_exp`,
// `log_sum_exp` and `weighted_exp`.
//
// Order of summation: sequential from +0, in row-major order of the cells of a window, or of the windows that hold a
// cell.

//                          out                 x          y            dy                      scalar
#define OP_MAX 1         // max of the window   input      -            -                       -
#define OP_MAX_FIRST 2   // where the max is    input      maxima       -                       -
#define OP_MAX_BWD 3     // gradient of input   -          where it is  gradient of maxima      -
#define OP_MAX_PICK 4    // dy at the max       input      maxima       one element per cell    -
#define OP_AVG 5         // mean                input      -            -                       1 / cells if COUNT_PADDING
#define OP_AVG_BWD 6     // gradient of input   -          -            gradient of means       1 / cells if COUNT_PADDING
#define OP_SMOOTH 7      // log-sum-exp         input      -            -                       beta
#define OP_SMOOTH_BWD 8  // gradient of input   input      log-sum-exps gradient of them        beta
#define OP_SMOOTH_SUM 9  // adjoint of the last input      log-sum-exps one element per cell    beta

// Whether an output element is an input cell that gathers from the windows that hold it.
#define GATHERS (OP == OP_MAX_BWD || OP == OP_AVG_BWD || OP == OP_SMOOTH_BWD)

#if UNROLL
#define UNROLL_WINDOW _Pragma("unroll")
#else
#define UNROLL_WINDOW _Pragma("unroll 1")
#endif

typedef unsigned long long u64;

// Offsets in a plane.
#if WIDE
typedef u64 Offset;
#else
typedef unsigned Offset;
#endif
constexpr Offset NOWHERE = ~(Offset)0;

// Sizes of a plane of the input and of the output.
struct Sizes { unsigned in[10], out[10]; };  // the host's MAX_RANK

// Coordinates inside a plane.
struct Position { unsigned at[RANK]; };

// The window of an output: its first cell, which may be padding, and how many cells it has along each axis.
struct PoolWindow { int start[RANK], cells[RANK]; };

#if !ADAPTIVE
// Element A of a list.
template <int A> __device__ constexpr int at(const int (&list)[RANK]) { return list[A]; }
#define KERNEL_AT(A) at<A>({KERNEL})
#define STRIDE_AT(A) at<A>({STRIDE})
#define PADDING_AT(A) at<A>({PADDING})
#define DILATION_AT(A) at<A>({DILATION})
#endif

// NaN is larger than every number; among equals the first stays.
__device__ __forceinline__ bool larger(float v, float best) { return v > best || (v != v && best == best); }

// Equality in which NaN equals NaN.
__device__ __forceinline__ bool same(float a, float b) { return a == b || (a != a && b != b); }

// Splits the innermost coordinate off a linear index. 32-bit division where it suffices is several times faster.
__device__ __forceinline__ unsigned take(u64& rest, unsigned size) {
    u64 left;
    if (rest <= 0xffffffffull) left = (unsigned)rest / size;
    else left = rest / size;
    const unsigned c = (unsigned)(rest - left * size);
    rest = left;
    return c;
}

// Coordinates of a linear index; the remaining quotient is the plane.
template <int A = RANK - 1>
__device__ __forceinline__ void coordinates(u64& rest, const unsigned (&sizes)[10], Position& p) {
    p.at[A] = take(rest, sizes[A]);
    if constexpr (A > 0) coordinates<A - 1>(rest, sizes, p);
}

// Offset of a position inside its plane.
template <int A = RANK - 1>
__device__ __forceinline__ Offset offset(const Position& p, const unsigned (&sizes)[10]) {
    if constexpr (A < 0) return 0;
    else return offset<A - 1>(p, sizes) * sizes[A] + (Offset)p.at[A];
}

template <int A = RANK - 1>
__device__ __forceinline__ bool inside(const Position& p, const unsigned (&sizes)[10]) {
    if constexpr (A < 0 || !PADDED) return true;
    else return inside<A - 1>(p, sizes) && p.at[A] < sizes[A];
}

template <int A = 0>
__device__ __forceinline__ void window_of(const Position& o, const Sizes& sizes, PoolWindow& w) {
    if constexpr (A < RANK) {
#if ADAPTIVE
        w.start[A] = (int)((u64)o.at[A] * sizes.in[A] / sizes.out[A]);
        w.cells[A] = (int)((((u64)o.at[A] + 1) * sizes.in[A] + sizes.out[A] - 1) / sizes.out[A]) - w.start[A];
#else
        w.start[A] = (int)(o.at[A] * (unsigned)STRIDE_AT(A)) - PADDING_AT(A);
        w.cells[A] = KERNEL_AT(A);
#endif
        window_of<A + 1>(o, sizes, w);
    }
}

// Calls f(real, offset) for each cell of a window in row-major order. Padding cells are not real.
template <int A = 0, class F>
__device__ __forceinline__ void each_cell(const PoolWindow& w, const Sizes& sizes, Position& p, const F& f) {
    if constexpr (A == RANK) {
        f(inside(p, sizes.in), offset(p, sizes.in));
    } else {
        UNROLL_WINDOW
        for (int k = 0; k < w.cells[A]; ++k) {
#if ADAPTIVE
            p.at[A] = (unsigned)(w.start[A] + k);
#else
            p.at[A] = (unsigned)(w.start[A] + k * DILATION_AT(A));
#endif
            each_cell<A + 1>(w, sizes, p, f);
        }
    }
}

// The offset of the first cell of a window that holds `value`, or NOWHERE. No load waits for another.
__device__ __forceinline__ Offset first_cell(const PoolWindow& w, const Sizes& sizes, const float* plane, float value) {
    Offset first = NOWHERE;
    Position p;
    each_cell(w, sizes, p, [&](bool real, Offset cell) {
        const float v = real ? plane[cell] : 0.0f;
        if (real & same(v, value) & (first == NOWHERE)) first = cell;
    });
    return first;
}

// Cells of the innermost axis from c on that one call of `each_window` is for.
#if OP == OP_MAX_BWD && !ADAPTIVE
constexpr int SPAN = DILATION_AT(RANK - 1) == 1 ? CELLS : 1;
#else
constexpr int SPAN = 1;
#endif

// Calls f(o) for each output whose window holds cell c, or one of the SPAN cells from c on, in row-major order.
template <int A = 0, class F>
__device__ __forceinline__ void each_window(const Position& c, const Sizes& sizes, Position& o, const F& f) {
    if constexpr (A == RANK) {
        f(o);
    } else {
#if ADAPTIVE
        const unsigned low = (unsigned)((u64)c.at[A] * sizes.out[A] / sizes.in[A]);
        const unsigned high = (unsigned)((((u64)c.at[A] + 1) * sizes.out[A] + sizes.in[A] - 1) / sizes.in[A]);
        UNROLL_WINDOW
        for (unsigned i = low; i < high; ++i) {
            o.at[A] = i;
            each_window<A + 1>(c, sizes, o, f);
        }
#else
        const int padded = (int)c.at[A] + PADDING_AT(A);
        if constexpr (DILATION_AT(A) == 1) {
            // Consecutive windows, at most kernel / stride of them for a cell.
            constexpr int MORE = A == RANK - 1 ? SPAN - 1 : 0;
            const int past = padded - KERNEL_AT(A) + 1;
            const int low = past <= 0 ? 0 : (past + STRIDE_AT(A) - 1) / STRIDE_AT(A);
            const int high = min((padded + MORE) / STRIDE_AT(A), (int)sizes.out[A] - 1);
            UNROLL_WINDOW
            for (int i = 0; i < (KERNEL_AT(A) + MORE + STRIDE_AT(A) - 1) / STRIDE_AT(A); ++i) {
                o.at[A] = (unsigned)(low + i);
                if ((int)o.at[A] > high) continue;
                each_window<A + 1>(c, sizes, o, f);
            }
        } else {
            // The window in which this is cell k. The larger k, the earlier the window.
            UNROLL_WINDOW
            for (int k = KERNEL_AT(A) - 1; k >= 0; --k) {
                const int start = padded - k * DILATION_AT(A);
                if (start < 0 || start % STRIDE_AT(A) != 0) continue;
                o.at[A] = (unsigned)(start / STRIDE_AT(A));
                if (o.at[A] >= sizes.out[A]) continue;
                each_window<A + 1>(c, sizes, o, f);
            }
        }
#endif
    }
}

#if OP == OP_AVG || OP == OP_AVG_BWD
// Cells of a window inside the plane. Average pooling has no dilation.
template <int A = RANK - 1>
__device__ __forceinline__ auto real_cells(const PoolWindow& w, const Sizes& sizes) {
#if ADAPTIVE
    if constexpr (A == 0) return w.cells[0];
    else return real_cells<A - 1>(w, sizes) * w.cells[A];
#else
    unsigned cells = 1;
    if constexpr (A > 0) cells = real_cells<A - 1>(w, sizes);
    return cells * (unsigned)(min(w.start[A] + KERNEL_AT(A), (int)sizes.in[A]) - max(w.start[A], 0));
#endif
}

// The rounded 1 / cells of a window: of all cells or of the real ones.
__device__ __forceinline__ float inverse_cells(const PoolWindow& w, const Sizes& sizes, float inverse_of_all) {
    return COUNT_PADDING ? inverse_of_all : __fdiv_rn(1.0f, (float)real_cells(w, sizes));
}
#endif

extern "C" __global__ void __launch_bounds__(256)
pool(float* __restrict__ out, const float* __restrict__ x, const float* __restrict__ y, const float* __restrict__ dy,
     u64 items, u64 in_len, u64 out_len, Sizes sizes, float scalar EPILOGUE_PARAM) {
    for (u64 item = blockIdx.x * 256ull + threadIdx.x; item < items / CELLS; item += gridDim.x * 256ull) {
        u64 n = item * CELLS;  // the plane, once the coordinates are taken off
        Position c, o;
        PoolWindow w;
#if GATHERS
        coordinates(n, sizes.in, c);
        float sums[CELLS] = {};
#pragma unroll
        for (int cell = 0; cell < CELLS; cell += SPAN, c.at[RANK - 1] += SPAN) {
#if OP == OP_SMOOTH_BWD
            const float mine = x[item * CELLS + cell];
#elif OP == OP_MAX_BWD
            const Offset here = offset(c, sizes.in);
#endif
            each_window(c, sizes, o, [&](const Position& o) {
                const u64 at = n * out_len + offset(o, sizes.out);
#if OP == OP_MAX_BWD
                const Offset which = ((const Offset*)y)[at] - here;
                const float d = dy[at];
#pragma unroll
                for (int s = 0; s < SPAN; ++s)
                    if (which == s) sums[cell + s] = __fadd_rn(sums[cell + s], d);
#else
                float& sum = sums[cell];
#if OP == OP_AVG_BWD
                window_of(o, sizes, w);
                sum = __fadd_rn(sum, __fmul_rn(dy[at], inverse_cells(w, sizes, scalar)));
#else
                sum = __fadd_rn(sum, weighted_exp(scalar, mine, y[at], dy[at]));
#endif
#endif
            });
        }
        Vec<CELLS> results;
#pragma unroll
        for (int cell = 0; cell < CELLS; ++cell) results.v[cell] = sums[cell];
#if DITTO_EPILOGUE
        Extras<CELLS> extras;
        extras.load(epilogue_with, item * CELLS, 0);
        extras.finish(epilogue_with, results, item * CELLS);
#endif
        *(Vec<CELLS>*)(out + item * CELLS) = results;
#else
        coordinates(n, sizes.out, o);
        window_of(o, sizes, w);
        const float* const plane = x + n * in_len;
#if OP == OP_MAX
        float best = -__int_as_float(0x7f800000);
        each_cell(w, sizes, c, [&](bool real, Offset cell) {
            if (real) {
                const float v = plane[cell];
                if (larger(v, best)) best = v;
            }
        });
        out[item] = best;
#elif OP == OP_MAX_FIRST
        ((Offset*)out)[item] = first_cell(w, sizes, plane, y[item]);
#elif OP == OP_MAX_PICK
        const Offset first = first_cell(w, sizes, plane, y[item]);
        out[item] = first == NOWHERE ? 0.0f : dy[n * in_len + first];
#elif OP == OP_AVG
        float sum = 0.0f;
        each_cell(w, sizes, c, [&](bool real, Offset cell) {
            if (real) sum = __fadd_rn(sum, plane[cell]);
        });
        out[item] = __fmul_rn(sum, inverse_cells(w, sizes, scalar));
#elif OP == OP_SMOOTH
        float m = -__int_as_float(0x7f800000);
        each_cell(w, sizes, c, [&](bool real, Offset cell) {
            const float v = __fmul_rn(scalar, real ? plane[cell] : 0.0f);
            if (v > m) m = v;
        });
        m = finite_shift(m);
        float sum = 0.0f;
        each_cell(w, sizes, c, [&](bool real, Offset cell) {
            sum = __fadd_rn(sum, shifted_exp(scalar, real ? plane[cell] : 0.0f, m));
        });
        out[item] = log_sum_exp(m, sum, scalar);
#else
        const float value = y[item];
        const float* const weights = dy + n * in_len;
        float sum = 0.0f;
        each_cell(w, sizes, c, [&](bool real, Offset cell) {
            if (real) sum = __fadd_rn(sum, weighted_exp(scalar, plane[cell], value, weights[cell]));
        });
        out[item] = sum;
#endif
#endif
    }
}
