// What ends the products of this folder: neighbouring results, and the program that follows them.

typedef long long i64;

template <int V> struct Vec;
template <> struct Vec<1> { float v[1]; };
template <> struct __align__(8) Vec<2> { float v[2]; };
template <> struct __align__(16) Vec<4> { float v[4]; };

// Stores neighbours where they are wanted, without a branch, so that the results of many can be computed side by side.
__device__ __forceinline__ void store_if(float* at, const Vec<1>& v, bool wanted) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.f32 [%0], %1;}" ::"l"(at), "f"(v.v[0]), "r"((unsigned)wanted) : "memory");
}
__device__ __forceinline__ void store_if(float* at, const Vec<2>& v, bool wanted) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p st.global.v2.f32 [%0], {%1, %2};}"
                 ::"l"(at), "f"(v.v[0]), "f"(v.v[1]), "r"((unsigned)wanted) : "memory");
}
__device__ __forceinline__ void store_if(float* at, const Vec<4>& v, bool wanted) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p st.global.v4.f32 [%0], {%1, %2, %3, %4};}"
                 ::"l"(at), "f"(v.v[0]), "f"(v.v[1]), "f"(v.v[2]), "f"(v.v[3]), "r"((unsigned)wanted) : "memory");
}

#ifndef DITTO_EPILOGUE
#define DITTO_EPILOGUE 0
#define EPILOGUE_PARAM
#endif
#if DITTO_EPILOGUE
// A program follows the sums. The text before this one has it, as
//   epilogue(from, to)  EPILOGUE_Y results from a sum and EPILOGUE_X other inputs
//   epilogue_reads(i)   how input i is read: 0 at the place of the result, 1 at its column, 2 always the same element
//   Epilogue            where the inputs lie, and the results but for the first
#define EPILOGUE_PARAM , const __grid_constant__ Epilogue epilogue_with
// Without other inputs the program is computed where the sums are, in registers.
#define EPILOGUE_TILE (EPILOGUE_X > 0)

// The other inputs for W neighbouring results.
template <int W> struct Extras {
    Vec<W> x[EPILOGUE_X > 0 ? EPILOGUE_X : 1];

    // For the results from place `at` in column `column` on.
    __device__ __forceinline__ void load(const Epilogue& f, i64 at, i64 column) {
#pragma unroll
        for (int i = 0; i < EPILOGUE_X; ++i) {
            if (epilogue_reads(i) == 2) {
#pragma unroll
                for (int e = 0; e < W; ++e) x[i].v[e] = f.x[i][0];
            } else {
                x[i] = *(const Vec<W>*)(f.x[i] + (epilogue_reads(i) == 1 ? column : at));
            }
        }
    }
    // Tells the cache that they will be loaded: those in one place each.
    static __device__ __forceinline__ void expect(const Epilogue& f, i64 at) {
#pragma unroll
        for (int i = 0; i < EPILOGUE_X; ++i)
            if (epilogue_reads(i) == 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(f.x[i] + at));
    }
    // Makes results of the sums in v, which keeps the first ones; the others are written, unless they are not wanted.
    __device__ __forceinline__ void finish(const Epilogue& f, Vec<W>& v, i64 at, bool wanted = true) const {
        Vec<W> more[EPILOGUE_Y > 1 ? EPILOGUE_Y - 1 : 1];
#pragma unroll
        for (int e = 0; e < W; ++e) {
            float from[EPILOGUE_X + 1], to[EPILOGUE_Y];
            from[0] = v.v[e];
#pragma unroll
            for (int i = 0; i < EPILOGUE_X; ++i) from[i + 1] = x[i].v[e];
            epilogue(from, to);
            v.v[e] = to[0];
#pragma unroll
            for (int k = 1; k < EPILOGUE_Y; ++k) more[k - 1].v[e] = to[k];
        }
#pragma unroll
        for (int k = 1; k < EPILOGUE_Y; ++k)
            if (wanted) *(Vec<W>*)(f.y[k - 1] + at) = more[k - 1];
    }
};
#else
#define EPILOGUE_TILE 0
template <int W> struct Extras {};
#endif
