// Quotient and remainder, in 32 bits where they suffice: several times faster there.
__device__ __forceinline__ void divide(unsigned long long a, unsigned long long b, unsigned long long& q, unsigned long long& r) {
    if ((a | b) <= 0xffffffffull) {
        q = (unsigned)a / (unsigned)b;
        r = (unsigned)a - (unsigned)q * (unsigned)b;
    } else {
        q = a / b;
        r = a - q * b;
    }
}

