// Elementwise kernel: a program over inputs that are broadcast to the output.
//
// This text is compiled at run time after the program's device function and a few lines that pick one variant:
//   DITTO_X, _Y       lengths of the program's arrays of inputs and results
//   DITTO_RANK        axes of the output, after merging, that strided inputs are read along; 1: no input is strided
//   DITTO_VECTOR      neighbouring elements that a thread takes at a time: 4 or 1
//   DITTO_UNROLL      vectors that a thread takes in a turn of its loop
//   DITTO_WHOLE       1: the last axis is a multiple of DITTO_VECTOR, so that no vector crosses the end of a row
//   DITTO_WIDE        1: positions need 64 bits
//   DITTO_LEAVES      the result of whose lines the largest magnitudes are left, if DITTO_WARPS is not 0
//   DITTO_WARPS       0: elements are taken as they come; 1 or 8: so many warps of a block of 256 threads have a line
//   DITTO_INPUTS(F)   F(kind, i) for every input i
//   DITTO_RESULTS(F)  F(k) for every result k, which is stored k n words after the first
//   DITTO_CONSTS(F)   F(c) for every constant c
//   program(x, y, k0, ...)   one element: results y from inputs x and the constants
// How an input is read, its kind:
//   UNREAD    not at all: the program does not use it
//   PLAIN     element by element, in order
//   SINGLE    one element for the whole output
//   STRIDED   one stride per axis
//   ROW       one stride per axis, the last is 1 and the others are multiples of DITTO_VECTOR; only where DITTO_WHOLE is 1
//   REPEATED  one stride per axis, the last is 0; only where DITTO_WHOLE is 1
//   LINE      one stride per axis, the last is 0; only where rows are the lines that warps have, so that a line has one element of it
//
// Thread mapping: each thread computes VECTOR neighbouring elements UNROLL times per turn of a loop, over all elements or over those of a
// line. All loads of a turn are issued before its first store. 4 bytes are read per element and plain input, 4 written; no sums,
// so no order. The output may be an input too: a thread reads its elements before it writes them.

#define VECTOR DITTO_VECTOR
#define UNROLL DITTO_UNROLL

typedef unsigned long long u64;

#if DITTO_WIDE
typedef u64 Index;
struct Axis { u64 dim; };
__device__ __forceinline__ Index divide(Index x, const Axis& axis) { return x / axis.dim; }
#else
typedef unsigned Index;
// Division by a multiplication: exact for x < 2^31.
struct Axis { unsigned dim, multiplier, shift; };
__device__ __forceinline__ Index divide(Index x, const Axis& axis) { return __umulhi(x, axis.multiplier) >> axis.shift; }
#endif

struct Walk { Axis axes[DITTO_RANK]; };
struct Strides { Index s[DITTO_RANK]; };

// Where an input has the output's element with number `rest` along axes 0..=AXIS.
template <int AXIS = DITTO_RANK - 1>
__device__ __forceinline__ Index position(Index rest, const Walk& walk, const Strides& strides) {
    if constexpr (AXIS == 0) {
        return rest * strides.s[0];
    } else {
        const Index outer = divide(rest, walk.axes[AXIS]);
        return position<AXIS - 1>(outer, walk, strides) + (rest - outer * walk.axes[AXIS].dim) * strides.s[AXIS];
    }
}

// Elements of one input, or of one result.
struct Vector { float e[VECTOR]; };

__device__ __forceinline__ Vector load_vector(const float* from) {
#if VECTOR == 4
    const float4 f = *reinterpret_cast<const float4*>(from);
    return {f.x, f.y, f.z, f.w};
#else
    return {*from};
#endif
}

// A vector of `count` elements; the rest are zeros.
__device__ __forceinline__ Vector load_plain(const float* from, unsigned count) {
    if (count == VECTOR) return load_vector(from);
    Vector v = {};
    for (unsigned j = 0; j < VECTOR; ++j)
        if (j < count) v.e[j] = from[j];
    return v;
}

__device__ __forceinline__ void store(float* to, const Vector& v, unsigned count) {
#if VECTOR == 4
    if (count == VECTOR) {
        *reinterpret_cast<float4*>(to) = make_float4(v.e[0], v.e[1], v.e[2], v.e[3]);
    } else
#endif
    {
        for (unsigned j = 0; j < VECTOR; ++j)
            if (j < count) to[j] = v.e[j];
    }
}

#if DITTO_RANK > 1
__device__ __forceinline__ Vector load_strided(
    const float* from, Index at, unsigned count, const Walk& walk, const Strides& strides) {
    Vector v = {};
#if DITTO_WHOLE
    from += position(at, walk, strides);
    for (unsigned j = 0; j < VECTOR; ++j) v.e[j] = from[j * strides.s[DITTO_RANK - 1]];
#else
    for (unsigned j = 0; j < VECTOR; ++j)
        if (j < count) v.e[j] = from[position(at + j, walk, strides)];
#endif
    return v;
}
#endif

// Parameters of an input.
#define PARAM(kind, i) PARAM_##kind(i)
#define PARAM_UNREAD(i) , const float* in##i
#define PARAM_PLAIN(i) , const float* in##i
#define PARAM_SINGLE(i) , const float* in##i
#define PARAM_STRIDED(i) , const float* in##i, Strides strides##i
#define PARAM_ROW(i) PARAM_STRIDED(i)
#define PARAM_REPEATED(i) PARAM_STRIDED(i)
#define PARAM_LINE(i) PARAM_STRIDED(i)

// Before the loop: elements of which there is one only, and names for those of a turn.
#define ONCE(kind, i) ONCE_##kind(i)
#define ONCE_UNREAD(i)
#define ONCE_PLAIN(i) Vector vector##i[UNROLL];
#define ONCE_SINGLE(i) const float single##i = in##i[0];
#define ONCE_STRIDED(i) Vector vector##i[UNROLL];
#define ONCE_ROW(i) Vector vector##i[UNROLL];
#define ONCE_REPEATED(i) float repeated##i[UNROLL];
#define ONCE_LINE(i) const float of_line##i = begin < end ? in##i[position(begin, walk, strides##i)] : 0.0f;

// Elements at..at + count.
#define LOAD(kind, i) LOAD_##kind(i)
#define LOAD_UNREAD(i)
#define LOAD_PLAIN(i) vector##i[u] = load_plain(in##i + at[u], count[u]);
#define LOAD_SINGLE(i)
#define LOAD_STRIDED(i) vector##i[u] = load_strided(in##i, at[u], count[u], walk, strides##i);
#define LOAD_ROW(i) vector##i[u] = load_vector(in##i + position(at[u], walk, strides##i));
#define LOAD_LINE(i)
#define LOAD_REPEATED(i) repeated##i[u] = in##i[position(at[u], walk, strides##i)];

// Element j of them. What is computed from single elements only is computed once.
#define TAKE(kind, i) TAKE_##kind(i)
#define TAKE_UNREAD(i)
#define TAKE_PLAIN(i) x[i] = vector##i[u].e[j];
#define TAKE_SINGLE(i) x[i] = single##i;
#define TAKE_STRIDED(i) x[i] = vector##i[u].e[j];
#define TAKE_ROW(i) x[i] = vector##i[u].e[j];
#define TAKE_REPEATED(i) x[i] = repeated##i[u];
#define TAKE_LINE(i) x[i] = of_line##i;

#define KEEP(k) result[k].e[j] = y[k];
#define STORE(k) store(out + (u64)k * n + at[u], result[k], count[u]);

#define CONST_PARAM(c) , float k##c
#define CONST(c) , k##c

#if DITTO_WARPS
#define LINES_PARAM , Index length, unsigned* magnitudes
#else
#define LINES_PARAM
#endif

extern "C" __global__ void __launch_bounds__(256) map(
    float* out, Index n
#if DITTO_RANK > 1
    , Walk walk
#endif
    DITTO_INPUTS(PARAM) DITTO_CONSTS(CONST_PARAM) LINES_PARAM) {
#if DITTO_WARPS
    constexpr Index TOGETHER = 32 * DITTO_WARPS, step = TOGETHER * VECTOR;
    const Index line = blockIdx.x * (256 / TOGETHER) + threadIdx.x / TOGETHER, begin = line * length;
    const Index end = begin < n ? begin + length : begin;
    Index first = begin + threadIdx.x % TOGETHER * VECTOR;
    float largest = 0.0f;
#else
    const Index step = (Index)gridDim.x * 256 * VECTOR, end = n;
    Index first = (blockIdx.x * (Index)256 + threadIdx.x) * VECTOR;
#endif
    DITTO_INPUTS(ONCE)
    for (; first < end; first += UNROLL * step) {
        Index at[UNROLL];
        unsigned count[UNROLL];
        #pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            at[u] = first + u * step;
            count[u] = at[u] < end ? (unsigned)min(end - at[u], (Index)VECTOR) : 0;
        }
        #pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (count[u] > 0) { DITTO_INPUTS(LOAD) }
        #pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (count[u] == 0) break;
            Vector result[DITTO_Y];
            #pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                float x[DITTO_X], y[DITTO_Y];
                DITTO_INPUTS(TAKE)
                program(x, y DITTO_CONSTS(CONST));
                DITTO_RESULTS(KEEP)
#if DITTO_WARPS
                largest = larger(largest, y[DITTO_LEAVES]);
#endif
            }
            DITTO_RESULTS(STORE)
        }
    }
#if DITTO_WARPS
    leave_magnitude<DITTO_WARPS>(largest, magnitudes + line, begin < n);
#endif
}
