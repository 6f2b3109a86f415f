// Recurrent layers: what is done in a step beside the product with the weights. One thread takes one element of the state
// (batch, hidden) at a time, in a grid-stride loop; no element reads what another one writes in the same launch.
//
// This text is compiled at run time after two device functions and a few lines that pick the cell:
//   step_program(x, y)    of a step: the gates of both projections, the states before, the mask; the states after, what is saved
//   slope_program(x, y)   of its gradient: saved, states after, states before, gradients of saved and of states after, the
//                         product with the weights, what else comes from the later step, the mask; the gradients of the gates
//                         of each projection, what goes to each state before
//   GATES, STATES, SAVED  numbers of the cell
//   PROJECTIONS           projections that have a gradient of their own
//   MASKED                1: there is a mask (steps, batch)
// A value has rows of `len` = batch * hidden elements: of each state steps + 1, then of each saved number steps.

typedef unsigned long long u64;

// Row `row` of part `part` of a value.
__device__ __forceinline__ u64 row_of(unsigned part, u64 row, u64 steps) {
    return part < STATES ? part * (steps + 1) + row : STATES * (steps + 1) + (part - STATES) * steps + row;
}

// Copies the initial states to their rows.
extern "C" __global__ void __launch_bounds__(256)
recurrent_start(const float* __restrict__ h, const float* __restrict__ c, float* __restrict__ value, u64 len, u64 steps,
                u64 first) {
    for (u64 at = blockIdx.x * 256ull + threadIdx.x; at < len; at += gridDim.x * 256ull) {
        value[row_of(0, first, steps) * len + at] = h[at];
        if (STATES > 1) value[row_of(1, first, steps) * len + at] = c[at];
    }
}

// A step at time t, from row `before` of the states to row `after`.
extern "C" __global__ void __launch_bounds__(256)
recurrent_step(const float* __restrict__ x, const float* __restrict__ product, const float* __restrict__ mask, float* value,
               u64 batch, u64 hidden, u64 steps, u64 t, u64 before, u64 after) {
    const u64 len = batch * hidden;
    for (u64 at = blockIdx.x * 256ull + threadIdx.x; at < len; at += gridDim.x * 256ull) {
        const u64 n = at / hidden, j = at - n * hidden;
        float in[2 * GATES + STATES + MASKED], out[STATES + SAVED];
#pragma unroll
        for (unsigned g = 0; g < GATES; ++g) {
            in[g] = x[((t * batch + n) * GATES + g) * hidden + j];
            in[GATES + g] = product[(n * GATES + g) * hidden + j];
        }
#pragma unroll
        for (unsigned k = 0; k < STATES; ++k) in[2 * GATES + k] = value[row_of(k, before, steps) * len + at];
#if MASKED
        in[2 * GATES + STATES] = mask[t * batch + n];
#endif
        step_program(in, out);
#pragma unroll
        for (unsigned k = 0; k < STATES + SAVED; ++k) {
            value[row_of(k, k < STATES ? after : t, steps) * len + at] = out[k];
        }
    }
}

// The gradient of a step at time t. `product` (batch, hidden) and `direct` (STATES, batch, hidden) are what the later step passes to this
// one, unless this is the last; `direct` is then what this step passes on.
extern "C" __global__ void __launch_bounds__(256)
recurrent_slope(const float* __restrict__ value, const float* __restrict__ up, const float* __restrict__ mask,
                const float* __restrict__ product, float* direct, float* __restrict__ grad, u64 batch, u64 hidden, u64 steps,
                u64 t, u64 before, u64 after, int last) {
    const u64 len = batch * hidden;
    for (u64 at = blockIdx.x * 256ull + threadIdx.x; at < len; at += gridDim.x * 256ull) {
        const u64 n = at / hidden, j = at - n * hidden;
        float in[2 * SAVED + 4 * STATES + 1 + MASKED], out[PROJECTIONS * GATES + STATES];
        float* next = in;
#pragma unroll
        for (unsigned k = 0; k < SAVED; ++k) *next++ = value[row_of(STATES + k, t, steps) * len + at];
#pragma unroll
        for (unsigned k = 0; k < STATES; ++k) *next++ = value[row_of(k, after, steps) * len + at];
#pragma unroll
        for (unsigned k = 0; k < STATES; ++k) *next++ = value[row_of(k, before, steps) * len + at];
#pragma unroll
        for (unsigned k = 0; k < SAVED; ++k) *next++ = up[row_of(STATES + k, t, steps) * len + at];
#pragma unroll
        for (unsigned k = 0; k < STATES; ++k) *next++ = up[row_of(k, after, steps) * len + at];
        *next++ = last ? 0.0f : product[at];
#pragma unroll
        for (unsigned k = 0; k < STATES; ++k) *next++ = last ? 0.0f : direct[k * len + at];
#if MASKED
        *next++ = mask[t * batch + n];
#endif
        slope_program(in, out);
#pragma unroll
        for (unsigned k = 0; k < PROJECTIONS * GATES; ++k) {
            const u64 line = (k / GATES * steps + t) * batch + n;
            grad[(line * GATES + k % GATES) * hidden + j] = out[k];
        }
#pragma unroll
        for (unsigned k = 0; k < STATES; ++k) direct[k * len + at] = out[PROJECTIONS * GATES + k];
    }
}

// The gradients of the initial states: those of their rows, and what the first step passes on.
extern "C" __global__ void __launch_bounds__(256)
recurrent_end(const float* __restrict__ up, const float* __restrict__ product, const float* __restrict__ direct,
              float* __restrict__ grad, u64 len, u64 steps, u64 first) {
    for (u64 at = blockIdx.x * 256ull + threadIdx.x; at < len; at += gridDim.x * 256ull) {
#pragma unroll
        for (unsigned k = 0; k < STATES; ++k) {
            float later = 0.0f;
            if (steps > 0) {
                later = direct[k * len + at];
                if (k == 0) later = __fadd_rn(product[at], later);
            }
            const u64 to = (u64)PROJECTIONS * GATES * steps + k;
            grad[to * len + at] = __fadd_rn(up[row_of(k, first, steps) * len + at], later);
        }
    }
}
