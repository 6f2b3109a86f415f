// Attention in digits: modes `fast` and `turbo`, the same bits as the CPU.
//
// This is the common part of digits_convert.cu, digits_forward.cu, digits_keys.cu and digits_queries.cu, after attention.cu, lists.cu and
// ../matmul/digit_parts.cu. Every
// product of 16 rows and 8 columns is by tensor cores that multiply 8-bit digits and add in integers, which is exact.
//
// Parameters besides those of attention.cu:
//   DITTO_DIGITS      digits of a number: 3 in `fast`, 2 in `turbo`
//   DITTO_SHARE       1: all tiles take turns at one place of shared memory (backward, little shared memory)
//   LEAST_EXPONENT    of a row, the contract's
//
// Tokens (queries or keys) come in blocks of BLOCK = 64, filled up with zeros. A block has digits in up to two forms:
//   rows      a token is a row, its numbers are the steps of k; the scale is the token's
//   columns   a column of the block is a row, its 64 tokens are the steps of k; the scale is the column's in this block
// Heads are filled up with zeros to P, a multiple of 32. A tile is [digit][rows][steps] bytes, 64 P for each digit, and lies in
// global memory as in shared memory, see `place`. Scales are 2^(e - BITS), or NaN for a row that is not finite.

typedef unsigned char u8;

constexpr int D = DITTO_D, DV = DITTO_DV;
__device__ constexpr int padded(int d) { return (d + 31) / 32 * 32; }
constexpr int DP = padded(D), VP = padded(DV);

#define ALL 0xffffffffu
#define NOT_A_NUMBER __uint_as_float(0x7fc00000u)

// Where group g of 16 bytes of row r lies in a tile with rows of K bytes: any group of 8 neighbouring rows is in all banks.
template <int K> __device__ __forceinline__ int place(int r, int g) {
    return r * K + (g ^ (K % 128 == 0 ? r & 7 : K % 64 == 0 ? r >> 1 & 3 : r >> 2 & 1)) * 16;
}

// What numbers of a row are multiplied by to be integers, and 2^(e - BITS).
struct Scale {
    float up, down;

    // `largest`: the largest magnitude of the row, or NaN.
    __device__ __forceinline__ explicit Scale(float largest) {
        const unsigned bits = __float_as_uint(largest) & 0x7fffffffu, least = (unsigned)(LEAST_EXPONENT + 126) << 23;
        // 2^e, whose exponent field is e + 126 here.
        const unsigned power = max((bits + 0x20000u) & 0x7f800000u, least);
        up = __uint_as_float(((unsigned)(BITS + 253) << 23) - power);
        down = bits >= 0x7f800000u ? NOT_A_NUMBER : __uint_as_float(power - ((unsigned)(BITS - 1) << 23));
    }
};

// The largest of the four lanes that share a row.
__device__ __forceinline__ float largest_of_row(float m) {
    m = larger(m, __shfl_xor_sync(ALL, m, 2));
    return larger(m, __shfl_xor_sync(ALL, m, 1));
}

// Starts copying BYTES bytes to shared memory.
template <int BYTES, int THREADS> __device__ __forceinline__ void copy(unsigned to, const void* from) {
    const unsigned at = threadIdx.x * 16;
    const u8* const first = (const u8*)from + at;
#pragma unroll
    for (int i = 0; i < BYTES; i += THREADS * 16)
        if (i + THREADS * 16 <= BYTES || at < BYTES - i)
            copy_16(to + at + i, first + i);
}

#ifndef DITTO_SHARE
#define DITTO_SHARE 0
#endif

// The address of a tile, which begins at `place`; with DITTO_SHARE, it is copied first.
template <int BYTES, int THREADS> __device__ __forceinline__ unsigned tile_at(unsigned memory, int place, const u8* from) {
    if (!DITTO_SHARE) return memory + place;
    __syncthreads();
    copy<BYTES, THREADS>(memory, from);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    return memory;
}

// Four neighbouring floats of a row of W, from a multiple of four on; zeros beyond its end, and of a row that is not there.
template <int W> __device__ __forceinline__ Quad four_of(const float* row, int at) { return quad<W % 4 == 0>(row, at, row ? W : 0); }

// The left side of a product: the digits of 16 rows and K steps, as tensor cores take them. Lane (g, t), 8 by 4, has rows g and g + 8, and
// of each 16 steps 4 t .. 4 t + 3.
template <int K> struct Left {
    unsigned x[DIGITS][K / 32][4];

    // From a row of a tile on.
    __device__ __forceinline__ void load(unsigned tile, int row) {
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int d = 0; d < DIGITS; ++d)
#pragma unroll
            for (int step = 0; step < K / 32; ++step)
                load_tiles(x[d][step], tile + d * 64 * K + row * K + place<K>(lane % 16, step * 2 + lane / 16));
    }

    __device__ __forceinline__ void step(unsigned (&a)[DIGITS][4], int step) const {
#pragma unroll
        for (int d = 0; d < DIGITS; ++d)
#pragma unroll
            for (int i = 0; i < 4; ++i) a[d][i] = x[d][step][i];
    }

    // Of rows g and g + 8 of W floats, as by split<true>; zeros for a row that is not there. Returns their scales.
    template <int W> __device__ __forceinline__ float2 convert(const float* const (&from)[2]) {
        const int t = threadIdx.x & 3;
        float down[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            Quad v[K / 16];
            float most = 0.0f;
#pragma unroll
            for (int c = 0; c < K / 16; ++c) {
                v[c] = four_of<W>(from[r], 16 * c + 4 * t);
                most = larger(most, v[c]);
            }
            const Scale scale(largest_of_row(most));
            down[r] = scale.down;
#pragma unroll
            for (int c = 0; c < K / 16; ++c) {
                unsigned digits[DIGITS];
                split<true>(v[c], scale.up, digits);
#pragma unroll
                for (int d = 0; d < DIGITS; ++d) x[d][c / 2][c % 2 * 2 + r] = digits[d];
            }
        }
        return make_float2(down[0], down[1]);
    }
};

// The left side of a product from a row of a tile on. Large heads are read anew for each step, since registers are short.
template <int K, bool HELD = K <= 64 || DITTO_SHARE> struct LeftTile : Left<K> {
    __device__ __forceinline__ LeftTile(unsigned tile, int row) { this->load(tile, row); }
};
template <int K> struct LeftTile<K, false> {
    unsigned tile;

    __device__ __forceinline__ LeftTile(unsigned tile, int row) : tile(tile + row * K) {}
    __device__ __forceinline__ void step(unsigned (&a)[DIGITS][4], int step) const {
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int d = 0; d < DIGITS; ++d) load_tiles(a[d], tile + d * 64 * K + place<K>(lane % 16, step * 2 + lane / 16));
    }
};

// The left side of a product from results of another one, w[f][i]: of columns 8 f + 2 t and one more, those of row g, then of row g + 8.
// The 64 steps are in the order in which that needs no exchange. `up`: of the two rows.
__device__ __forceinline__ void split_rows(Left<64>& left, const float (&w)[8][4], float up0, float up1) {
#pragma unroll
    for (int f = 0; f < 8; f += 2)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            unsigned digits[DIGITS];
            split<true>(Quad{w[f][2 * h], w[f][2 * h + 1], w[f + 1][2 * h], w[f + 1][2 * h + 1]}, h ? up1 : up0, digits);
#pragma unroll
            for (int d = 0; d < DIGITS; ++d) left.x[d][f / 4][f % 4 + h] = digits[d];
        }
}

// The token of step p of a block's 64: columns are stored in this order, that of split_rows.
__device__ __forceinline__ constexpr int token_of(int p) { return p / 16 * 16 + p % 4 / 2 * 8 + p % 16 / 4 * 2 + p % 2; }

// Exact sums of 16 rows and 16 columns, of each weight. Lane (g, t) has of the first 8 columns, and then of the others, rows g and g + 8 of
// columns 2 t and 2 t + 1.
struct Sums {
    int s[2][WEIGHTS][4];

    // The product of `left` and 16 rows of a tile of SIZE bytes a digit. With FREE, the lowest digits of the left side are as by split<true>.
    template <int K, int SIZE, bool FREE, class L> __device__ __forceinline__ void multiply(const L& left, unsigned tile, int row) {
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int w = 0; w < WEIGHTS; ++w)
#pragma unroll
                for (int i = 0; i < 4; ++i) s[h][w][i] = DIGITS == 2 && w == 2 ? 0x4b400000 : 0;
#pragma unroll
        for (int step = 0; step < K / 32; ++step) {
            unsigned a[DIGITS][4], b[DIGITS][4];
            left.step(a, step);
#pragma unroll
            for (int d = 0; d < DIGITS; ++d) load_tiles(b[d], tile + d * SIZE + row * K + place<K>(lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
            all_pairs([&](int i, int j, int w) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    if (FREE && DIGITS == 2 && i == 0)
                        mma<true>(s[h][w], a[i], b[j][2 * h], b[j][2 * h + 1]);
                    else
                        mma(s[h][w], a[i], b[j][2 * h], b[j][2 * h + 1]);
                }
            });
        }
    }

    // The float32 nearest to the total, times 2^E of the given `Power`. Two exact parts are added with one rounding; the bits of the lower one
    // are put together as those of a number with a fixed exponent, and what that adds cancels.
    __device__ __forceinline__ float rounded(int h, int i, float times, unsigned bits) const {
        const int v = s[h][1][i] * 256 + s[h][0][i];
#if DITTO_DIGITS == 2
        // The sum of weight 2 began with the bits of 1.5 * 2^23.
        const float high = __fsub_rn(__int_as_float((v >> 16) + s[h][2][i]), 12582912.0f + 128.0f);
        return __fmaf_rn(high, times, __uint_as_float(__byte_perm((unsigned)v, bits, 0x5410)));
#else
        const int z = s[h][3][i] * 256 + ((v >> 16) + s[h][2][i]);
        const float high = __fsub_rn(__int_as_float((z >> 7) + 0x4b400000), 12582912.0f + 1.0f);
        return __fmaf_rn(high, times, __uint_as_float((__byte_perm((unsigned)v, (unsigned)z, 0x4410) & 0x7fffffu) | bits));
#endif
    }
};

// A power of two from 2^-119 to 2^80 as `rounded` takes it, or NaN.
struct Power {
    float times;
    unsigned bits;

    __device__ __forceinline__ explicit Power(float x) {
#if DITTO_DIGITS == 2
        times = __fmul_rn(x, 65536.0f);
        bits = (__float_as_uint(x) >> 16) + (0x4b00u - 0x3f80u);
#else
        times = __fmul_rn(x, 8388608.0f);
        bits = __float_as_uint(x) + (0x4b000000u - 0x3f800000u);
#endif
    }
};

// The scales of rows g and g + 8. Results are multiplied by a row's scale up to 2^80, then by a column's, then by the rest of the row's,
// so that no product overflows too early. That rest is 1 for all but huge numbers.
struct RowScales {
    Power first[2];
    float rest[2];
    bool huge;  // the same for all lanes

    static __device__ __forceinline__ float limit() { return power(80); }
    static __device__ __forceinline__ float all(float scale) { return __fmul_rn(scale, power(LEFT_OUT)); }
    static __device__ __forceinline__ float limited(float x) { return x > limit() ? limit() : x; }
    static __device__ __forceinline__ float beyond(float x) { return x > limit() ? __fmul_rn(x, power(-80)) : 1.0f; }

    __device__ __forceinline__ RowScales(float a, float b)
        : first{Power(limited(all(a))), Power(limited(all(b)))}, rest{beyond(all(a)), beyond(all(b))}, huge(__any_sync(ALL, all(a) > limit() || all(b) > limit())) {}

    // The results of 16 rows and 16 columns, of which `columns` are the scales from the lane's first one on.
    __device__ __forceinline__ void finish(float (&x)[4], float (&y)[4], const Sums& sums, const float* columns) const {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float2 column = *reinterpret_cast<const float2*>(columns + 8 * h);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                (h ? y : x)[i] = __fmul_rn(sums.rounded(h, i, first[i / 2].times, first[i / 2].bits), i % 2 ? column.y : column.x);
        }
        if (huge)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                x[i] = __fmul_rn(x[i], rest[i / 2]);
                y[i] = __fmul_rn(y[i], rest[i / 2]);
            }
    }
};

// The left side of a product, made of w: two rows of each lane, with the scales of their largest numbers.
struct Rows {
    Left<64> left;
    float down[2];

    __device__ __forceinline__ explicit Rows(const float (&w)[8][4]) {
        float most[2] = {0.0f, 0.0f};
#pragma unroll
        for (int f = 0; f < 8; ++f)
#pragma unroll
            for (int i = 0; i < 4; ++i) most[i / 2] = larger(most[i / 2], w[f][i]);
        const Scale a(largest_of_row(most[0])), b(largest_of_row(most[1]));
        split_rows(left, w, a.up, b.up);
        down[0] = a.down;
        down[1] = b.down;
    }

    // acc += the product with a tile, whose scales are `columns`.
    template <int P> __device__ __forceinline__ void accumulate(float (&acc)[P / 8][4], unsigned tile, const float* columns) const {
        const RowScales scales(down[0], down[1]);
#pragma unroll
        for (int c = 0; c < P / 8; c += 2) {
            Sums sums;
            sums.multiply<64, 64 * P, true>(left, tile, c * 8);
            float x[2][4];
            scales.finish(x[0], x[1], sums, columns + c * 8);
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[c + h][i] = __fadd_rn(acc[c + h][i], x[h][i]);
        }
    }
};

// Two neighbouring columns of a row of W floats, from an even one on.
template <int W> __device__ __forceinline__ void store_pair(float* row, int at, float x, float y) {
    if (W % 2 == 0) {
        if (at < W) *reinterpret_cast<float2*>(row + at) = make_float2(x, y);
    } else {
        if (at < W) row[at] = x;
        if (at + 1 < W) row[at + 1] = y;
    }
}

// The weight 2^x, 0 for x below -126. A plain selection would become a branch.
__device__ __forceinline__ float weight(float x) {
    float w;
    asm("{.reg .pred p; setp.lt.f32 p, %1, 0fC2FC0000; selp.f32 %0, 0f00000000, %2, p;}"
        : "=f"(w) : "f"(x), "f"(__fmul_rn(ditto_weight_mantissa(x), ditto_weight_power(x))));
    return w;
}
// The same for an x that is not above 0, with one instruction less: the power of -127 is 0, and a product below 2^-126 is flushed to 0.
__device__ __forceinline__ float weight_below_one(float x) {
    float w;
    asm("max.NaN.f32 %0, %1, 0fC2FE0000;" : "=f"(w) : "f"(x));
    asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(x) : "f"(ditto_weight_mantissa(w)), "f"(ditto_weight_power(w)));
    return x;
}
