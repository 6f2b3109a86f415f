// What all kernels of products in digits share: exponents, digits, their products on tensor cores by `mma.sync`, and the rounding of exact
// sums. DITTO_DIGITS is the number of digits, LEAST_EXPONENT the contract's.

typedef long long i64;
typedef unsigned long long u64;

constexpr int DIGITS = DITTO_DIGITS, BITS = 8 * DIGITS - 1, KB = 64, NOT_FINITE = 1 << 20;

// x / by, of numbers that are not negative. Most have 32 bits, whose division is many times shorter.
__device__ __forceinline__ i64 quotient(i64 x, i64 by) { return (u64)(x | by) <= 0xffffffffull ? (unsigned)x / (unsigned)by : x / by; }

// 2^e, for e from -126 to 127.
__device__ __forceinline__ float power(int e) { return __int_as_float((e + 127) << 23); }

__device__ __forceinline__ int exponent_of(unsigned largest) {
    if (largest >= 0x7f800000u) return NOT_FINITE;
    const int e = (int)(largest >> 23) - 126 + ((largest & 0x7fffffu) >= 0x7e0000u);
    return max(e, LEAST_EXPONENT);
}

struct Quad { float v[4]; };

__device__ __forceinline__ float larger(float m, const Quad& x) {
#pragma unroll
    for (int i = 0; i < 4; ++i) m = larger(m, x.v[i]);
    return m;
}

// Four neighbours of a line of `length` floats, from `at` on; 0 beyond its end.
template <int VECTOR> __device__ __forceinline__ Quad quad(const float* line, i64 at, i64 length) {
    Quad x;
    if (VECTOR) {
        const float4 v = at < length ? *(const float4*)(line + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        x = {v.x, v.y, v.z, v.w};
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) x.v[i] = at + i < length ? line[at + i] : 0.0f;
    }
    return x;
}

// The digits of four numbers, one word for each place, the lowest first. A number plus half a unit of each place but the highest has the
// highest digit on top; below are the others, plus 128. With FREE, the lowest digit of `turbo` is from 0 to 255, and the other one takes
// the rest: exact sums are the same.
template <bool FREE = false> __device__ __forceinline__ void split(const Quad& x, float scale, unsigned (&digits)[DIGITS]) {
    constexpr bool SIGNED = !FREE || DIGITS == 3;
    unsigned n[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        // At most 2^15 in size, it is rounded by adding 1.5 * 2^23.
        if (DIGITS == 2) n[i] = __float_as_uint(__fmaf_rn(x.v[i], scale, 12582912.0f + (SIGNED ? 128.0f : 0.0f)));
        else n[i] = __float2int_rn(__fmul_rn(x.v[i], scale)) + 0x8080;
    }
    const unsigned first = __byte_perm(n[0], n[1], 0x5140), second = __byte_perm(n[2], n[3], 0x5140);
    digits[0] = __byte_perm(first, second, 0x5410) ^ (SIGNED ? 0x80808080u : 0);
    digits[1] = __byte_perm(first, second, 0x7632) ^ (DIGITS == 3 ? 0x80808080u : 0);
    if (DIGITS == 3) digits[DIGITS - 1] = __byte_perm(__byte_perm(n[0], n[1], 0x0062), __byte_perm(n[2], n[3], 0x0062), 0x5410);
}

__device__ __forceinline__ float scale_of(int e) { return e == NOT_FINITE ? 0.0f : power(BITS - e); }

// Where word w of a row lies in its block.
__device__ __forceinline__ int word_at(i64 row, int w) { return (w / 4 ^ (int)(row >> 1 & 3)) * 16 + w % 4 * 4; }

// An exact sum: high * 2^LOW and the lowest LOW bits of `low`.
constexpr int LOW = 8 * DIGITS;
struct Sum {
    int high;
    unsigned low;

    __device__ __forceinline__ Sum(int high, unsigned low) : high(high), low(low) {}
    __device__ __forceinline__ explicit Sum(i64 exact) : high((int)(exact >> LOW)), low((unsigned)exact) {}

    __device__ __forceinline__ i64 exact() const { return ((i64)high << LOW) + (low & ((1u << LOW) - 1)); }

    // The nearest float32 times `scale`, a power of two that is so large that the result is not subnormal.
    __device__ __forceinline__ float rounded(float scale) const {
        if (DIGITS == 3) return __fmul_rn(__ll2float_rn(exact()), scale);
        // Below 2^45 in size: two exact parts of 22 and 23 bits, added with one rounding.
        const float top = __int_as_float((high >> 7) + 0x4b400000) - 12582912.0f;
        const float rest = __int_as_float((__byte_perm(low, high, 0x5410) & 0x7fffff) | 0x4b000000);
        return __fmaf_rn(top, 8388608.0f * scale, __fmaf_rn(rest, scale, -8388608.0f * scale));
    }
};

constexpr int WEIGHTS = DIGITS == 2 ? 3 : 4;

// All pairs of digits, (digit of A, digit of B, weight); the lowest with the lowest counts in `turbo` only.
template <class F> __device__ __forceinline__ void all_pairs(F&& f) {
#pragma unroll
    for (int w = WEIGHTS - 1; w >= 0; --w)
#pragma unroll
        for (int i = DIGITS - 1; i >= 0; --i) {
            const int j = w + (DIGITS == 3 ? 1 : 0) - i;
            if (j >= 0 && j < DIGITS) f(i, j, w);
        }
}

// The exact sum of a result, of the sums of each weight: what is above 8 bits of one goes to the next.
template <int N> __device__ __forceinline__ Sum total(const int (&sums)[WEIGHTS][N], int i) {
    if (DIGITS == 2) {
        const int middle = sums[1][i] + (sums[0][i] >> 8);
        return {sums[2][i] + (middle >> 8), __byte_perm(sums[0][i], middle, 0x0040)};
    }
    int high = sums[0][i];
    unsigned low = 0;
#pragma unroll
    for (int w = 1; w < WEIGHTS; ++w) {
        low |= (high & 255u) << 8 * (w - 1);
        high = sums[w][i] + (high >> 8);
    }
    return {high, low};
}

// The power of two that a total counts besides the scales of its row and column, see the contract.
constexpr int LEFT_OUT = DIGITS == 3 ? 8 : 0;

__device__ __forceinline__ float column_scale_of(int e) { return e == NOT_FINITE ? __int_as_float(0x7fc00000) : power(e - BITS); }

// The scale of a row, as two powers of two. The first one is at most 2^60, so that no product overflows before its column's
// scale has had its turn.
struct RowScale {
    float first, second;

    __device__ __forceinline__ explicit RowScale(int e) {
        const int all = e - BITS + LEFT_OUT, part = min(all, 60);
        first = e == NOT_FINITE ? __int_as_float(0x7fc00000) : power(part);
        second = e == NOT_FINITE ? 1.0f : power(all - part);
    }
    __device__ __forceinline__ float finished(Sum sum, float column) const {
        return __fmul_rn(__fmul_rn(sum.rounded(first), column), second);
    }
};

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Four tiles of 8 rows by 16 bytes; lane l says where row l % 8 of tile l / 8 is.
__device__ __forceinline__ void load_tiles(unsigned (&x)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
}
// Starts copying 16 bytes to shared memory.
__device__ __forceinline__ void copy_16(unsigned to, const unsigned char* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// s += a b for 16 rows, 8 columns and 32 steps of k; with UNSIGNED, a is.
template <bool UNSIGNED = false> __device__ __forceinline__ void mma(int* s, const unsigned (&a)[4], unsigned b0, unsigned b1) {
#define MMA(type)                                                                                                                     \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." type ".s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+r"(s[0]), "+r"(s[1]), "+r"(s[2]), "+r"(s[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if (UNSIGNED)
        MMA("u8");
    else
        MMA("s8");
#undef MMA
}

// Where 16 bytes, `group` of a line's KB, lie among LINES lines in shared memory: INTERLEAVE of them lie next to each other, in the order of the hardware's
// swizzle, those of all lines before the next INTERLEAVE.
template <int LINES, int INTERLEAVE = 4> __device__ __forceinline__ unsigned place_in(unsigned line, unsigned group) {
    return (group / INTERLEAVE * LINES + line) * 16 * INTERLEAVE + (group % INTERLEAVE ^ line * INTERLEAVE / 8 % INTERLEAVE) * 16;
}

// Adds the product of 32 rows from `down` on and 32 columns from `across` on of a block, whose digits of A, [digit][BM][KB], begin at `a`,
// and those of B at `b`.
template <int BM, int BN, int INTERLEAVE = 4> __device__ __forceinline__ void multiply_block(int (&sums)[2][WEIGHTS][16], unsigned a, unsigned b, int down, int across) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < KB / 32; ++step) {
        unsigned fa[DIGITS][2][4], fb[DIGITS][2][4];
#pragma unroll
        for (int d = 0; d < DIGITS; ++d)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                // Of A: rows 0-7 and 8-15 of the first 16 steps, then of the others. Of B: columns 0-7 of both, then 8-15.
                load_tiles(fa[d][h], a + d * BM * KB + place_in<BM>(down + h * 16 + lane % 16, step * 2 + lane / 16));
                load_tiles(fb[d][h], b + d * BN * KB + place_in<BN, INTERLEAVE>(across + h * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
            }
        all_pairs([&](int i, int j, int weight) {
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int g = 0; g < 4; ++g) mma(&sums[h][weight][g * 4], fa[i][h], fb[j][g / 2][g % 2 * 2], fb[j][g / 2][g % 2 * 2 + 1]);
        });
    }
}
