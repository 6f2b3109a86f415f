// Sums of the words of values: `mod.rs` beside this file defines them.
//
// This text is compiled at run time after one line:
//   DITTO_TABLE  most values of a launch
//   DITTO_BLOCK  words that a block of threads takes, an even number
//
// Thread mapping: each block takes the next DITTO_BLOCK words of a value, which it finds by the first blocks of all values.
// Threads add up pairs of words, blocks add their sums to that of the value. The sums are of whole numbers, so no order matters.

typedef unsigned long long u64;

#define THREADS 256

// Where each value lies, how many words it has, and the first block that it is taken by.
struct Table {
    u64 address[DITTO_TABLE];
    u64 len[DITTO_TABLE];
    unsigned first[DITTO_TABLE];
    unsigned count;
};

// All NaNs are one.
__device__ __forceinline__ unsigned canonical(unsigned word) {
    return (word & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : word;
}

// The term of words 2 * i and 2 * i + 1.
__device__ __forceinline__ u64 term(u64 i, unsigned low, unsigned high) {
    u64 x = ((u64)canonical(high) << 32 | canonical(low)) + i * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
    return x ^ x >> 32;
}

extern "C" __global__ void __launch_bounds__(THREADS) sums(const __grid_constant__ Table table, u64* __restrict__ out) {
    // The last value whose first block is not after this one.
    unsigned value = 0;
    for (unsigned end = table.count; end - value > 1;) {
        const unsigned middle = (value + end) / 2;
        if (table.first[middle] <= blockIdx.x) value = middle;
        else end = middle;
    }
    const unsigned* words = reinterpret_cast<const unsigned*>(table.address[value]);
    const u64 from = (u64)(blockIdx.x - table.first[value]) * DITTO_BLOCK;
    const u64 to = min(from + DITTO_BLOCK, table.len[value]);

    u64 sum = 0;
    u64 quads = 0;
    if (table.address[value] % 16 == 0) {
        quads = (to - from) / 4;
        const uint4* four = reinterpret_cast<const uint4*>(words + from);
        #pragma unroll 4
        for (u64 j = threadIdx.x; j < quads; j += THREADS) {
            const uint4 w = four[j];
            sum += term(from / 2 + 2 * j, w.x, w.y) + term(from / 2 + 2 * j + 1, w.z, w.w);
        }
    }
    for (u64 w = from + 4 * quads + 2 * threadIdx.x; w < to; w += 2 * THREADS)
        sum += term(w / 2, words[w], w + 1 < to ? words[w + 1] : 0);

    __shared__ u64 warps[THREADS / 32];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < THREADS / 32; ++w) sum += warps[w];
        atomicAdd(out + value, sum);
    }
}
