// The digits of queries, keys, values and gradients. A block of threads has a block of tokens of one of them, and reads it once.

// One tensor: lists of `tokens` rows, `apart` words from each other. Either form may be missing.
struct Part {
    const float* x;
    u8* rows;
    float* row_scales;  // [list][block][64]
    u8* columns;
    float* column_scales;  // [list][block][P]
    unsigned tokens, apart, is_value, unused;
};

struct Parts {
    Part part[4];
};

constexpr int MOST = DP > VP ? DP : VP, THREADS = 4 * MOST;

struct Shared {
    float of_rows[64][MOST / 32];
    float of_columns[16][MOST];
    float up_row[64], up_column[MOST];
    unsigned turned[DIGITS][MOST][17];
};

// Thread (u, v) has columns 4 v .. 4 v + 3 of the four tokens whose digits are one word of a column.
template <int W> __device__ __forceinline__ void convert(const Part& part, unsigned z, unsigned block, unsigned heads, Shared& shared) {
    constexpr int P = padded(W), PER = P / 4;
    const int u = threadIdx.x / PER, v = threadIdx.x % PER;
    const unsigned blocks = (part.tokens + 63) / 64;
    const u64 tile = (u64)z * blocks + block;
    float x[4][4];
    int token[4];
    const float* const list = part.x + list_at<W>(z, part.tokens, heads, part.apart);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        token[i] = token_of(4 * u + i);
        const unsigned row = block * 64 + token[i];
        const float* const from = list + (u64)row * part.apart + 4 * v;
        const bool in = u < 16 && row < part.tokens;
        if (W % 4 == 0) {
            const float4 four = in && 4 * v < W ? *reinterpret_cast<const float4*>(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            x[i][0] = four.x; x[i][1] = four.y; x[i][2] = four.z; x[i][3] = four.w;
        } else {
#pragma unroll
            for (int c = 0; c < 4; ++c) x[i][c] = in && 4 * v + c < W ? from[c] : 0.0f;
        }
    }
    if (u < 16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float m = larger(larger(fabsf(x[i][0]), x[i][1]), larger(fabsf(x[i][2]), x[i][3]));
            // Eight lanes have neighbouring columns of a row.
#pragma unroll
            for (int step = 4; step > 0; step /= 2) m = larger(m, __shfl_xor_sync(ALL, m, step));
            if (v % 8 == 0) shared.of_rows[token[i]][v / 8] = m;
        }
#pragma unroll
        for (int c = 0; c < 4; ++c) shared.of_columns[u][4 * v + c] = larger(larger(fabsf(x[0][c]), x[1][c]), larger(fabsf(x[2][c]), x[3][c]));
    }
    __syncthreads();
    for (int r = threadIdx.x; r < 64 + P; r += THREADS) {
        float m = 0.0f;
        if (r < 64) {
#pragma unroll
            for (int i = 0; i < P / 32; ++i) m = larger(m, shared.of_rows[r][i]);
            const Scale scale(m);
            shared.up_row[r] = scale.up;
            if (part.rows) part.row_scales[tile * 64 + r] = scale.down;
        } else {
#pragma unroll
            for (int i = 0; i < 16; ++i) m = larger(m, shared.of_columns[i][r - 64]);
            const Scale scale(m);
            shared.up_column[r - 64] = scale.up;
            if (part.columns) part.column_scales[tile * P + r - 64] = scale.down;
        }
    }
    __syncthreads();
    unsigned digits[DIGITS];
    if (part.rows && u < 16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            split<false>(x[i][0], x[i][1], x[i][2], x[i][3], shared.up_row[token[i]], digits);
#pragma unroll
            for (int d = 0; d < DIGITS; ++d)
                *reinterpret_cast<unsigned*>(part.rows + (tile * DIGITS + d) * 64 * P + place<P>(token[i], v / 4) + v % 4 * 4) = digits[d];
        }
    }
    if (!part.columns) return;
    if (u < 16) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            split<false>(x[0][c], x[1][c], x[2][c], x[3][c], shared.up_column[4 * v + c], digits);
#pragma unroll
            for (int d = 0; d < DIGITS; ++d) shared.turned[d][4 * v + c][u] = digits[d];
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < DIGITS * P * 16; at += THREADS) {
        const int d = at / (P * 16), column = at / 16 % P, word = at % 16;
        *reinterpret_cast<unsigned*>(part.columns + (tile * DIGITS + d) * 64 * P + place<64>(column, word / 4) + word % 4 * 4) = shared.turned[d][column][word];
    }
}

// `heads`: how many lie inside a row; 1 if lists are dense.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_digits(const __grid_constant__ Parts parts, unsigned batch, unsigned heads) {
    __shared__ Shared shared;
    const Part& part = parts.part[blockIdx.y];
    const unsigned blocks = (part.tokens + 63) / 64, z = blockIdx.x / blocks, block = blockIdx.x % blocks;
    if (z >= batch) return;
    if (DV != D && part.is_value)
        convert<DV>(part, z, block, heads, shared);
    else
        convert<D>(part, z, block, heads, shared);
}
