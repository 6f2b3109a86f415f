// The digits of keys and values, and in the backward pass of queries and gradients too. A block of threads has a block of tokens of one of them, and reads it once.

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
    __align__(16) float of_columns[16][MOST];
    float of_rows[64][MOST / 32];
    float up_row[64], up_column[MOST];
    unsigned turned[DIGITS][MOST][17];
};

// Thread (u, v) has columns 4 v .. 4 v + 3 of the four tokens whose digits are one word of a column.
template <int W> __device__ __forceinline__ void convert(const Part& part, unsigned z, unsigned block, unsigned heads, Shared& shared) {
    constexpr int P = padded(W), PER = P / 4;
    const int u = threadIdx.x / PER, v = threadIdx.x % PER;
    const unsigned blocks = (part.tokens + 63) / 64;
    const u64 tile = (u64)z * blocks + block;
    Quad x[4];
    int token[4];
    const float* const list = part.x + list_at<W>(z, part.tokens, heads, part.apart);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        token[i] = token_of(4 * u + i);
        const unsigned row = block * 64 + token[i];
        x[i] = four_of<W>(u < 16 && row < part.tokens ? list + (u64)row * part.apart : nullptr, 4 * v);
    }
    auto column = [&](int c) { return Quad{x[0].v[c], x[1].v[c], x[2].v[c], x[3].v[c]}; };
    if (u < 16) {
        if (part.rows) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float m = larger(0.0f, x[i]);
                // Eight lanes have neighbouring columns of a row.
#pragma unroll
                for (int step = 4; step > 0; step /= 2) m = larger(m, __shfl_xor_sync(ALL, m, step));
                if (v % 8 == 0) shared.of_rows[token[i]][v / 8] = m;
            }
        }
        if (part.columns) {
            float m[4];
#pragma unroll
            for (int c = 0; c < 4; ++c) m[c] = larger(0.0f, column(c));
            *reinterpret_cast<float4*>(&shared.of_columns[u][4 * v]) = make_float4(m[0], m[1], m[2], m[3]);
        }
    }
    __syncthreads();
    const int r = threadIdx.x;
    if (part.rows && r < 64) {
        float m = 0.0f;
#pragma unroll
        for (int i = 0; i < P / 32; ++i) m = larger(m, shared.of_rows[r][i]);
        const Scale scale(m);
        shared.up_row[r] = scale.up;
        part.row_scales[tile * 64 + r] = scale.down;
    }
    if (part.columns && r >= THREADS - P) {
        const int c = r - (THREADS - P);
        float m = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; ++i) m = larger(m, shared.of_columns[i][c]);
        const Scale scale(m);
        shared.up_column[c] = scale.up;
        part.column_scales[tile * P + c] = scale.down;
    }
    __syncthreads();
    unsigned digits[DIGITS];
    if (part.rows && u < 16) {
        u8* const to = part.rows + tile * (DIGITS * 64 * P) + v % 4 * 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            split(x[i], shared.up_row[token[i]], digits);
            const int at = place<P>(token[i], v / 4);
#pragma unroll
            for (int d = 0; d < DIGITS; ++d) *reinterpret_cast<unsigned*>(to + (d * 64 * P + at)) = digits[d];
        }
    }
    if (!part.columns) return;
    if (u < 16) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            split(column(c), shared.up_column[4 * v + c], digits);
#pragma unroll
            for (int d = 0; d < DIGITS; ++d) shared.turned[d][4 * v + c][u] = digits[d];
        }
    }
    __syncthreads();
    u8* const to = part.columns + tile * (DIGITS * 64 * P);
#pragma unroll
    for (int i = 0; i < DIGITS * P * 4; i += THREADS) {
        const int at = i + threadIdx.x, d = at / (P * 4), c = at / 4 % P, group = at % 4;
        if (at >= DIGITS * P * 4) break;
        const unsigned* const from = &shared.turned[d][c][group * 4];
        *reinterpret_cast<uint4*>(to + (d * 64 * P + place<64>(c, group))) = make_uint4(from[0], from[1], from[2], from[3]);
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
