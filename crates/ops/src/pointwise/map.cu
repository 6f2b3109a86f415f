// Elementwise kernel: a program over inputs that are broadcast to the output.
//
// This text is compiled at run time after the program's device function and a few lines that pick one variant:
//   DITTO_X, _Y       lengths of the program's arrays of inputs and results
//   DITTO_MAX_RANK    most axes of a shape
//   DITTO_RANK        axes of the output, after merging, that strided inputs are read along; 1: no input is strided
//   DITTO_WHOLE       1: no vector crosses the end of a row: loads and stores are vectorized
//   DITTO_INPUTS(F)   F(kind, i) for every input i
//   DITTO_RESULTS(F)  F(k) for every result k, which is stored k n words after the first
//   DITTO_CONSTS(F)   F(c) for every constant c
//   program(x, y, k0, ...)   one element: results y from inputs x and the constants
// How an input is read, its kind:
//   UNREAD    not at all: the program does not use it
//   PLAIN     element by element, in order
//   SINGLE    one element for the whole output
//   STRIDED   one stride per axis; the last is 1 where DITTO_WHOLE is
//   REPEATED  one stride per axis, the last is 0; only where DITTO_WHOLE is 1
//
// Thread mapping: each thread computes VECTOR neighbouring elements per turn of a grid-stride loop. 4 bytes are read per
// element and plain input, 4 written; no sums, so no order. The output may be an input too: a thread reads its elements
// before it writes them.

#define VECTOR 4

typedef unsigned long long u64;

struct Walk { unsigned dims[DITTO_MAX_RANK]; };
struct Strides { u64 s[DITTO_MAX_RANK]; };

// Coordinates along axes 0..=AXIS of the output's element `rest`.
template <int AXIS>
__device__ __forceinline__ void coordinates(u64 rest, const Walk& walk, u64 (&c)[DITTO_RANK]) {
    if constexpr (AXIS == 0) {
        c[0] = rest;
    } else {
        // 32-bit division where it suffices: it is several times faster.
        if (rest <= 0xffffffffull) {
            const unsigned q = (unsigned)rest / walk.dims[AXIS];
            c[AXIS] = (unsigned)rest - q * walk.dims[AXIS];
            rest = q;
        } else {
            c[AXIS] = rest % walk.dims[AXIS];
            rest /= walk.dims[AXIS];
        }
        coordinates<AXIS - 1>(rest, walk, c);
    }
}

// Position in an input of the element at coordinates `c`, as far as axes 0..=AXIS go.
template <int AXIS>
__device__ __forceinline__ u64 position(const u64 (&c)[DITTO_RANK], const Strides& strides) {
    if constexpr (AXIS == 0) return c[0] * strides.s[0];
    else return position<AXIS - 1>(c, strides) + c[AXIS] * strides.s[AXIS];
}

struct Vector { float e[VECTOR]; };

__device__ __forceinline__ Vector load_vector(const float* from) {
    const float4 f = *reinterpret_cast<const float4*>(from);
    return {f.x, f.y, f.z, f.w};
}

// Parameters of an input.
#define PARAM(kind, i) PARAM_##kind(i)
#define PARAM_UNREAD(i) , const float* in##i
#define PARAM_PLAIN(i) , const float* in##i
#define PARAM_SINGLE(i) , const float* in##i
#define PARAM_STRIDED(i) , const float* in##i, Strides strides##i
#define PARAM_REPEATED(i) , const float* in##i, Strides strides##i

// Before the loop: elements of which there is one only.
#define ONCE(kind, i) ONCE_##kind(i)
#define ONCE_UNREAD(i)
#define ONCE_PLAIN(i)
#define ONCE_SINGLE(i) const float single##i = in##i[0];
#define ONCE_STRIDED(i)
#define ONCE_REPEATED(i)

// Where the element is, or the vector begins.
#define POSITION(kind, i) POSITION_##kind(i)
#define POSITION_UNREAD(i)
#define POSITION_PLAIN(i)
#define POSITION_SINGLE(i)
#define POSITION_STRIDED(i) const u64 position##i = position<DITTO_RANK - 1>(c, strides##i);
#define POSITION_REPEATED(i) POSITION_STRIDED(i)

// Elements at..at + VECTOR, and one of them. What is computed from single elements only is computed once.
#define LOAD_VECTOR(kind, i) LOAD_VECTOR_##kind(i)
#define LOAD_VECTOR_UNREAD(i)
#define LOAD_VECTOR_PLAIN(i) const Vector vector##i = load_vector(in##i + at);
#define LOAD_VECTOR_SINGLE(i)
#define LOAD_VECTOR_STRIDED(i) const Vector vector##i = load_vector(in##i + position##i);
#define LOAD_VECTOR_REPEATED(i) const float e##i = in##i[position##i]; const Vector vector##i = {e##i, e##i, e##i, e##i};

#define TAKE(kind, i) TAKE_##kind(i)
#define TAKE_UNREAD(i)
#define TAKE_PLAIN(i) x[i] = vector##i.e[j];
#define TAKE_SINGLE(i) x[i] = single##i;
#define TAKE_STRIDED(i) x[i] = vector##i.e[j];
#define TAKE_REPEATED(i) x[i] = vector##i.e[j];

// Element at + j.
#define LOAD(kind, i) LOAD_##kind(i)
#define LOAD_UNREAD(i)
#define LOAD_PLAIN(i) x[i] = in##i[at + j];
#define LOAD_SINGLE(i) x[i] = single##i;
#define LOAD_STRIDED(i) x[i] = in##i[position##i];
#define LOAD_REPEATED(i) LOAD_STRIDED(i)

// Results of elements at..at + VECTOR, and of element at + j.
#define KEEP(k) result[k][j] = y[k];
#define STORE_VECTOR(k) \
    *reinterpret_cast<float4*>(out + k * n + at) = \
        make_float4(result[k][0], result[k][1], result[k][2], result[k][3]);
#define STORE(k) out[k * n + at + j] = y[k];

#define CONST_PARAM(c) , float k##c
#define CONST(c) , k##c

extern "C" __global__ void map(
    float* out, u64 n
#if DITTO_RANK > 1
    , Walk walk
#endif
    DITTO_INPUTS(PARAM) DITTO_CONSTS(CONST_PARAM)) {
    DITTO_INPUTS(ONCE)
    for (u64 v = blockIdx.x * (u64)blockDim.x + threadIdx.x; v * VECTOR < n; v += (u64)gridDim.x * blockDim.x) {
        const u64 at = v * VECTOR;
#if DITTO_WHOLE
        if (at + VECTOR <= n) {
#if DITTO_RANK > 1
            u64 c[DITTO_RANK];
            coordinates<DITTO_RANK - 1>(at, walk, c);
#endif
            DITTO_INPUTS(POSITION)
            DITTO_INPUTS(LOAD_VECTOR)
            float result[DITTO_Y][VECTOR];
            #pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                float x[DITTO_X], y[DITTO_Y];
                DITTO_INPUTS(TAKE)
                program(x, y DITTO_CONSTS(CONST));
                DITTO_RESULTS(KEEP)
            }
            DITTO_RESULTS(STORE_VECTOR)
            continue;
        }
#endif
        // One element at a time: the tail, and rows that do not divide into vectors.
        for (int j = 0; j < VECTOR && at + j < n; ++j) {
#if DITTO_RANK > 1
            u64 c[DITTO_RANK];
            coordinates<DITTO_RANK - 1>(at + j, walk, c);
#endif
            float x[DITTO_X], y[DITTO_Y];
            DITTO_INPUTS(POSITION)
            DITTO_INPUTS(LOAD)
            program(x, y DITTO_CONSTS(CONST));
            DITTO_RESULTS(STORE)
        }
    }
}
