// Resampling of the last RANK axes of a value, and its transpose.
//
// The value is planes of RANK axes. Along an axis, element o of the longer description is the sum of `count[o]` weights times
// the input elements from `first[o]` on. The weights are formed in f64, as `Line::taps` does, and rounded once.
//
// This text is compiled after `#define` lines:
//   RANK         resampled axes, 1 to 3
//   TRANSPOSED   1: the transpose. Element i of its result sums over the outputs `low[i]` to below `high[i]`, all of which
//                i takes part in, since first and last input elements never decrease with the output.
//
// Order of summation: one chain of multiply-adds from +0 along each axis, in increasing order, the last axis first.

typedef unsigned long long u64;

// Planes that a thread makes the same element of.
#define PLANES 4

#define NEAREST 0
#define NEAREST_EXACT 1
#define LINEAR 2
#define CUBIC 3

// An axis: sizes of what this launch reads and writes, sizes of the input and output of the resampling (the other way round
// if TRANSPOSED), most weights of an output, and where its tables are.
struct Axis { unsigned from, to, inputs, outputs, taps, first, count, weights, low, high; };
struct Axes { Axis at[3]; };
struct Steps { double at[3]; };

// Number `i` of three. Choosing by a number that is not known when compiling would put all of them into memory.
#define ONE_OF(list, i) ((i) == 0 ? (list)[0] : (i) == 1 ? (list)[1] : (list)[2])

__device__ __forceinline__ Axis axis_of(const Axes& axes, unsigned i) {
    Axis a;
    a.from = ONE_OF(axes.at, i).from;
    a.to = ONE_OF(axes.at, i).to;
    a.inputs = ONE_OF(axes.at, i).inputs;
    a.outputs = ONE_OF(axes.at, i).outputs;
    a.taps = ONE_OF(axes.at, i).taps;
    a.first = ONE_OF(axes.at, i).first;
    a.count = ONE_OF(axes.at, i).count;
    a.weights = ONE_OF(axes.at, i).weights;
    a.low = ONE_OF(axes.at, i).low;
    a.high = ONE_OF(axes.at, i).high;
    return a;
}

__device__ __forceinline__ double cubic_inner(double x, double a) {
    return __dadd_rn(__dmul_rn(__dmul_rn(__dsub_rn(__dmul_rn(a + 2.0, x), a + 3.0), x), x), 1.0);
}

__device__ __forceinline__ double cubic_outer(double x, double a) {
    const double inner = __dsub_rn(__dmul_rn(a, x), 5.0 * a);
    return __dsub_rn(__dmul_rn(__dadd_rn(__dmul_rn(inner, x), 8.0 * a), x), 4.0 * a);
}

__device__ __forceinline__ double wide_weight(unsigned i, double centre, double shrink, int filter) {
    const double x = fabs(__dmul_rn(__dadd_rn(__dsub_rn((double)i, centre), 0.5), shrink));
    if (filter == CUBIC) return x < 1.0 ? cubic_inner(x, -0.5) : x < 2.0 ? cubic_outer(x, -0.5) : 0.0;
    return x < 1.0 ? __dsub_rn(1.0, x) : 0.0;
}

// One output of an axis per thread.
extern "C" __global__ void __launch_bounds__(128)
resample_tables(unsigned* tables, Axes axes, Steps steps, int filter, int align_corners, int antialias) {
    const unsigned o = blockIdx.x * 128 + threadIdx.x;
    const Axis a = axis_of(axes, blockIdx.y);
    const double step = ONE_OF(steps.at, blockIdx.y);
    if (o >= a.outputs) return;
    float* const weights = (float*)tables + a.weights + (u64)o * a.taps;
    const unsigned last = a.inputs - 1;
    unsigned first, count = 0;
    if (antialias) {
        const double half = filter == CUBIC ? 2.0 : 1.0;
        const double support = step > 1.0 ? __dmul_rn(half, step) : half;
        const double centre = __dmul_rn((double)o + 0.5, step);
        const double shrink = step > 1.0 ? __ddiv_rn(1.0, step) : 1.0;
        const double low = __dadd_rn(__dsub_rn(centre, support), 0.5);
        first = low > 0.0 ? min(__double2uint_rz(low), last) : 0;
        const unsigned end = max(min(__double2uint_rz(__dadd_rn(__dadd_rn(centre, support), 0.5)), a.inputs), first + 1);
        double total = 0.0;
        for (unsigned i = first; i < end; ++i) total = __dadd_rn(total, wide_weight(i, centre, shrink, filter));
        for (unsigned i = first; i < end; ++i) {
            const double w = wide_weight(i, centre, shrink, filter);
            weights[count++] = __double2float_rn(total == 0.0 ? 0.0 : __ddiv_rn(w, total));
        }
    } else if (filter == NEAREST || filter == NEAREST_EXACT) {
        const double place = __dmul_rn(filter == NEAREST ? (double)o : (double)o + 0.5, step);
        first = min(__double2uint_rz(place), last);
        weights[count++] = 1.0f;
    } else {
        const double place = align_corners ? __dmul_rn((double)o, step) : __dsub_rn(__dmul_rn((double)o + 0.5, step), 0.5);
        if (filter == LINEAR) {
            const double at = place > 0.0 ? place : 0.0;
            first = min(__double2uint_rz(at), last);
            const double t = __dsub_rn(at, (double)first);
            if (first == last || t == 0.0) {
                weights[count++] = 1.0f;
            } else {
                weights[count++] = __double2float_rn(__dsub_rn(1.0, t));
                weights[count++] = __double2float_rn(t);
            }
        } else {
            const double base = fmin(floor(place), (double)last);
            const double rest = __dsub_rn(place, base);
            const double t = rest < 1.0 ? rest : 1.0;
            const int i = (int)base;
            const double w[4] = {cubic_outer(__dadd_rn(t, 1.0), -0.75), cubic_inner(t, -0.75),
                                 cubic_inner(__dsub_rn(1.0, t), -0.75), cubic_outer(__dsub_rn(2.0, t), -0.75)};
            // Elements beyond an end are those at the end.
            int before = max(min(i - 1, (int)last), 0);
            first = before;
            double sum = w[0];
#pragma unroll
            for (int k = 1; k < 4; ++k) {
                const int at = max(min(i - 1 + k, (int)last), 0);
                if (at != before) {
                    weights[count++] = __double2float_rn(sum);
                    sum = 0.0;
                }
                before = at;
                sum = __dadd_rn(sum, w[k]);
            }
            weights[count++] = __double2float_rn(sum);
        }
    }
    tables[a.first + o] = first;
    tables[a.count + o] = count;
}

#if TRANSPOSED
// One input of an axis per thread: the outputs it takes part in, by bisection.
extern "C" __global__ void __launch_bounds__(128) resample_ranges(unsigned* tables, Axes axes) {
    const unsigned i = blockIdx.x * 128 + threadIdx.x;
    const Axis a = axis_of(axes, blockIdx.y);
    if (i >= a.inputs) return;
    const unsigned* const first = tables + a.first;
    const unsigned* const count = tables + a.count;
    unsigned low = 0, high = a.outputs;
    while (low < high) {  // the first output whose last input is not below i
        const unsigned middle = low + (high - low) / 2;
        if (first[middle] + count[middle] <= i) low = middle + 1; else high = middle;
    }
    const unsigned from = low;
    high = a.outputs;
    while (low < high) {  // the first output whose first input is above i
        const unsigned middle = low + (high - low) / 2;
        if (first[middle] <= i) low = middle + 1; else high = middle;
    }
    tables[a.low + i] = from;
    tables[a.high + i] = low;
}
#endif

struct Values { float at[PLANES]; };

// The sums along axes A… for element `to` of them. `at` is the offset of what was chosen along the axes before.
template <int A>
__device__ __forceinline__ Values sums(const float* const (&x)[PLANES], const unsigned* __restrict__ tables, const Axes& axes,
                                       const unsigned (&to)[RANK], u64 at) {
    Values all;
    if constexpr (A == RANK) {
#pragma unroll
        for (int p = 0; p < PLANES; ++p) all.at[p] = x[p][at];
    } else {
        const Axis& a = axes.at[A];
        const float* const weights = (const float*)tables + a.weights;
#pragma unroll
        for (int p = 0; p < PLANES; ++p) all.at[p] = 0.0f;
#if TRANSPOSED
        const unsigned end = tables[a.high + to[A]];
        for (unsigned o = tables[a.low + to[A]]; o < end; ++o) {
            const float w = weights[(u64)o * a.taps + (to[A] - tables[a.first + o])];
            const Values inner = sums<A + 1>(x, tables, axes, to, at * a.from + o);
#else
        const unsigned first = tables[a.first + to[A]], count = tables[a.count + to[A]];
        for (unsigned k = 0; k < count; ++k) {
            const float w = weights[(u64)to[A] * a.taps + k];
            const Values inner = sums<A + 1>(x, tables, axes, to, at * a.from + first + k);
#endif
#pragma unroll
            for (int p = 0; p < PLANES; ++p) all.at[p] = __fmaf_rn(w, inner.at[p], all.at[p]);
        }
    }
    return all;
}

// One element of PLANES planes per thread and turn of a grid-stride loop.
extern "C" __global__ void __launch_bounds__(256)
resample(const float* __restrict__ in, float* __restrict__ out, const unsigned* __restrict__ tables, u64 items, u64 positions,
         u64 inputs, u64 planes, Axes axes) {
    for (u64 item = blockIdx.x * 256ull + threadIdx.x; item < items; item += gridDim.x * 256ull) {
        const u64 group = item <= 0xffffffffull && positions <= 0xffffffffull ? (unsigned)item / (unsigned)positions : item / positions;
        const u64 position = item - group * positions;
        unsigned to[RANK];
        u64 rest = position;
#pragma unroll
        for (int a = RANK - 1; a > 0; --a) {
            const u64 left = rest <= 0xffffffffull ? (unsigned)rest / axes.at[a].to : rest / axes.at[a].to;
            to[a] = (unsigned)(rest - left * axes.at[a].to);
            rest = left;
        }
        to[0] = (unsigned)rest;
        const float* x[PLANES];
#pragma unroll
        for (int p = 0; p < PLANES; ++p) x[p] = in + min(group * PLANES + p, planes - 1) * inputs;
        const float* const (&const_x)[PLANES] = x;
        const Values all = sums<0>(const_x, tables, axes, to, 0);
#pragma unroll
        for (int p = 0; p < PLANES; ++p)
            if (group * PLANES + p < planes) out[(group * PLANES + p) * positions + position] = all.at[p];
    }
}
