// Tensor cores in mode tf32, for the texts that follow this one.

#if DITTO_TF32

// Rounds to the 11 bits that tensor cores read: they cut off what is behind, and half of that on average is added first.
// Numbers of 11 bits stay what they are, infinities and NaN too.
__device__ __forceinline__ unsigned tf32(float x) { return __float_as_uint(__fmul_rn(x, __uint_as_float(0x3f800b50u))); }

// c = a b + c for 16 rows, 8 columns and 8 steps. Lane (g, t), 8 by 4, has of a rows g and g + 8, of b column g, both for
// steps t and t + 4, and of c rows g and g + 8 of columns 2 t and 2 t + 1.
__device__ __forceinline__ void mma(float& c0, float& c1, float& c2, float& c3, unsigned a0, unsigned a1, unsigned a2,
                                    unsigned a3, unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

#endif
