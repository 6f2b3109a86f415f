// Update of parameters in place by an optimizer's rule.
//
// This text is compiled at run time after the rule's device function and a few lines that pick one rule:
//   DITTO_TABLE       most parameters of a launch
//   DITTO_HYPERS      scalars of a parameter's step: learning rate, weight decay, the rule's own, the limit of clipping
//   DITTO_MAX_STATES  most states of a parameter under any rule
//   DITTO_STATES      states of a parameter under this rule
//   DITTO_DIRECTED    1: the rule reads a direction besides the gradient
//   rule(x, y)        one element: the new parameter y[0] and states y[1]... from x, whose places are those below
//
// Thread mapping: blocks along y take a parameter each, blocks along x its elements in a grid-stride loop, VECTOR at a time
// where all addresses allow it. Parameter, gradient, states and direction are read once, parameter and states are written
// once; no sums, so no order.

#define VECTOR 4

typedef unsigned long long u64;

// Places in x. Those before FACTOR are columns of the table as well; states beyond DITTO_STATES are undefined.
enum { PARAMETER, GRADIENT, STATE, DIRECTION = STATE + DITTO_MAX_STATES, FACTOR, HYPERS, INPUTS = HYPERS + DITTO_HYPERS };

// Where each parameter and what belongs to it lie, how many elements it has, and which row of the scalars is its own.
struct Table {
    u64 address[FACTOR][DITTO_TABLE];
    u64 len[DITTO_TABLE];
    unsigned row[DITTO_TABLE];
};

__device__ __forceinline__ constexpr bool is_state(int column) { return column >= STATE && column < STATE + DITTO_STATES; }
__device__ __forceinline__ constexpr bool is_written(int column) { return column == PARAMETER || is_state(column); }
__device__ __forceinline__ constexpr bool is_read(int column) {
    return is_written(column) || column == GRADIENT || (DITTO_DIRECTED && column == DIRECTION);
}

template <int N> struct alignas(N * sizeof(float)) Vector { float e[N]; };

// Updates elements j * N..(j + 1) * N of parameter i. The factor and the scalars are in x.
template <int N>
__device__ __forceinline__ void update_vector(const Table& table, unsigned i, u64 j, float (&x)[INPUTS]) {
    Vector<N> vector[FACTOR];
    #pragma unroll
    for (int c = 0; c < FACTOR; ++c)
        if (is_read(c)) vector[c] = reinterpret_cast<const Vector<N>*>(table.address[c][i])[j];
    #pragma unroll
    for (int k = 0; k < N; ++k) {
        float y[1 + DITTO_STATES];
        #pragma unroll
        for (int c = 0; c < FACTOR; ++c)
            if (is_read(c)) x[c] = vector[c].e[k];
        rule(x, y);
        vector[PARAMETER].e[k] = y[0];
        #pragma unroll
        for (int s = 0; s < DITTO_STATES; ++s) vector[STATE + s].e[k] = y[1 + s];
    }
    #pragma unroll
    for (int c = 0; c < FACTOR; ++c)
        if (is_written(c)) reinterpret_cast<Vector<N>*>(table.address[c][i])[j] = vector[c];
}

// `hypers` has the rows of scalars; `factor`, which may be null, is the factor of norm clipping.
extern "C" __global__ void update(
    const __grid_constant__ Table table, const float* __restrict__ hypers, const float* __restrict__ factor) {
    const unsigned i = blockIdx.y;
    const u64 len = table.len[i];
    const float* row = hypers + table.row[i] * DITTO_HYPERS;
    float x[INPUTS];
    x[FACTOR] = factor ? *factor : 1.0f;
    #pragma unroll
    for (int h = 0; h < DITTO_HYPERS; ++h) x[HYPERS + h] = row[h];

    u64 addresses = 0;
    #pragma unroll
    for (int c = 0; c < FACTOR; ++c)
        if (is_read(c)) addresses |= table.address[c][i];
    const u64 vectors = addresses % sizeof(Vector<VECTOR>) == 0 ? len / VECTOR : 0;

    const u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x, stride = (u64)gridDim.x * blockDim.x;
    for (u64 j = first; j < vectors; j += stride) update_vector<VECTOR>(table, i, j, x);
    for (u64 j = vectors * VECTOR + first; j < len; j += stride) update_vector<1>(table, i, j, x);
}
