// Stable sort of rows of u32 keys: `order` lists the positions in a row by increasing key, equal keys by increasing position. Only
// integers are compared and counted, so the result does not depend on scheduling; no atomics.

// Few keys: the rank of key j is the number of keys before it, counted by comparing with all of them. A block of 1024
// threads ranks 64 keys: each of 16 groups of 64 threads compares with its 256 of every 4096 keys, which all its
// threads read at the same address. n^2 comparisons, n / 64 blocks.
extern "C" __global__ void __launch_bounds__(1024) rank_keys(const unsigned* __restrict__ keys, unsigned n, unsigned* __restrict__ sorted,
                                                             unsigned* __restrict__ order) {
    __shared__ uint4 tile[1024];
    __shared__ unsigned counts[16][64];
    const unsigned t = threadIdx.x % 64, part = threadIdx.x / 64;
    const unsigned j = blockIdx.x * 64 + t;
    const unsigned key = j < n ? keys[j] : 0;
    unsigned count = 0;
    for (unsigned base = 0; base < n; base += 4096) {
        __syncthreads();
        for (unsigned i = threadIdx.x; i < 4096; i += 1024) {
            // Padding after the last key sorts after every key.
            reinterpret_cast<unsigned*>(tile)[i] = base + i < n ? keys[base + i] : 0xffffffffu;
        }
        __syncthreads();
        // The 64 keys of a block lie in one run of 256, so all its threads take the same branch for a group.
        const unsigned run = base / 256 + part, mine = blockIdx.x / 4;
        const uint4* k = tile + part * 64;
        if (run < mine) {
#pragma unroll 8
            for (unsigned i = 0; i < 64; ++i) {
                const uint4 v = k[i];
                count += (v.x <= key) + (v.y <= key) + (v.z <= key) + (v.w <= key);
            }
        } else if (run > mine) {
#pragma unroll 8
            for (unsigned i = 0; i < 64; ++i) {
                const uint4 v = k[i];
                count += (v.x < key) + (v.y < key) + (v.z < key) + (v.w < key);
            }
        } else {
            for (unsigned i = 0; i < 64; ++i) {
                const uint4 v = k[i];
                const unsigned at = run * 256 + i * 4;
                count += v.x < key || (v.x == key && at < j);
                count += v.y < key || (v.y == key && at + 1 < j);
                count += v.z < key || (v.z == key && at + 2 < j);
                count += v.w < key || (v.w == key && at + 3 < j);
            }
        }
    }
    counts[part][t] = count;
    __syncthreads();
    if (part == 0 && j < n) {
        unsigned place = 0;
        for (unsigned p = 0; p < 16; ++p) place += counts[p][t];
        sorted[place] = key;
        order[place] = j;
    }
}

// Many keys: radix sort by 8-bit digits, lowest first. A block of 8 warps takes a tile of 4096 keys of a row, each warp 512
// consecutive ones. A pass counts the digits of every tile, sums the counts of each digit over the tiles of its row, and moves
// each key to its place. A block orders its tile in shared memory first, so that keys of one digit are written side by side.
// Lanes with equal digits find each other by votes, and one of them counts for all, so no two threads touch one counter.
// 12 bytes read and 8 written per key and pass.

#define WARPS 8
#define ROUNDS 16
#define TILE (WARPS * ROUNDS * 32)

// Counts the digits of a warp's keys in `counts`. Also counts for each of a lane's keys how many earlier keys of the warp have
// the same digit.
__device__ __forceinline__ void count_digits(const unsigned* keys, unsigned n, unsigned shift, unsigned first, unsigned* counts, unsigned (&key)[ROUNDS],
                                             unsigned (&rank)[ROUNDS]) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned r = 0; r < ROUNDS; ++r) {
        const unsigned at = first + r * 32 + lane;
        key[r] = at < n ? keys[at] : 0;
    }
#pragma unroll
    for (unsigned r = 0; r < ROUNDS; ++r) {
        const bool there = first + r * 32 + lane < n;
        const unsigned digit = key[r] >> shift & 255u;
        unsigned peers = __ballot_sync(0xffffffffu, there);
#pragma unroll
        for (unsigned bit = 0; bit < 8; ++bit) {
            const bool set = digit >> bit & 1u;
            const unsigned votes = __ballot_sync(0xffffffffu, set);
            peers &= set ? votes : ~votes;
        }
        const unsigned before = __popc(peers & ((1u << lane) - 1));
        const unsigned earlier = counts[digit];
        rank[r] = earlier + before;
        __syncwarp();
        if (there && before == 0) counts[digit] = earlier + __popc(peers);
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(256) radix_count(const unsigned* __restrict__ keys, unsigned n, unsigned tiles, unsigned shift, unsigned* __restrict__ counts) {
    __shared__ unsigned mine[WARPS][256];
    const unsigned warp = threadIdx.x / 32;
    for (unsigned w = 0; w < WARPS; ++w) mine[w][threadIdx.x] = 0;
    __syncthreads();
    unsigned key[ROUNDS], rank[ROUNDS];
    const unsigned row = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    count_digits(keys + (unsigned long long)row * n, n, shift, tile * TILE + warp * (ROUNDS * 32), mine[warp], key, rank);
    __syncthreads();
    unsigned sum = 0;
    for (unsigned w = 0; w < WARPS; ++w) sum += mine[w][threadIdx.x];
    counts[(row * 256ull + threadIdx.x) * tiles + tile] = sum;
}

// Exclusive prefix sums of `lists` lists of `tiles` counts, in place, and the sum of each. A warp has a list.
extern "C" __global__ void __launch_bounds__(256) radix_sum(unsigned* __restrict__ counts, unsigned* __restrict__ totals, unsigned lists, unsigned tiles) {
    const unsigned lane = threadIdx.x % 32;
    for (unsigned list = blockIdx.x * WARPS + threadIdx.x / 32; list < lists; list += gridDim.x * WARPS) {
        unsigned* mine = counts + (unsigned long long)list * tiles;
        unsigned carry = 0;
        for (unsigned base = 0; base < tiles; base += 128) {
            unsigned v[4], sums[4];
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                const unsigned at = base + i * 32 + lane;
                sums[i] = v[i] = at < tiles ? mine[at] : 0;
            }
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                for (unsigned d = 1; d < 32; d *= 2) {
                    const unsigned other = __shfl_up_sync(0xffffffffu, sums[i], d);
                    if (lane >= d) sums[i] += other;
                }
                const unsigned at = base + i * 32 + lane;
                if (at < tiles) mine[at] = carry + sums[i] - v[i];
                carry += __shfl_sync(0xffffffffu, sums[i], 31);
            }
        }
        if (lane == 0) totals[list] = carry;
    }
}

// `positions` is null in the first pass: key i of a row is at position i.
extern "C" __global__ void __launch_bounds__(256, 3) radix_move(const unsigned* __restrict__ keys, const unsigned* __restrict__ positions, unsigned n, unsigned tiles, unsigned shift,
                                                             const unsigned* __restrict__ counts, const unsigned* __restrict__ totals, unsigned* __restrict__ sorted,
                                                             unsigned* __restrict__ order) {
    __shared__ unsigned mine[WARPS][256];
    __shared__ unsigned tile_keys[TILE], tile_positions[TILE];
    __shared__ unsigned offset[256];
    __shared__ unsigned long long sums[WARPS];
    const unsigned t = threadIdx.x, lane = t % 32, warp = t / 32;
    for (unsigned w = 0; w < WARPS; ++w) mine[w][t] = 0;
    __syncthreads();
    unsigned key[ROUNDS], rank[ROUNDS];
    const unsigned row = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    const unsigned first = tile * TILE + warp * (ROUNDS * 32);
    const unsigned long long start = (unsigned long long)row * n;
    count_digits(keys + start, n, shift, first, mine[warp], key, rank);
    __syncthreads();
    // Thread t has digit t. The keys of smaller digits come before it: those of the row in the upper half, those of the tile in
    // the lower half of one sum.
    unsigned count = 0;
    for (unsigned w = 0; w < WARPS; ++w) {
        const unsigned of_warp = mine[w][t];
        mine[w][t] = count;
        count += of_warp;
    }
    const unsigned long long own = (unsigned long long)totals[row * 256ull + t] << 32 | count;
    unsigned long long sum = own;
    for (unsigned d = 1; d < 32; d *= 2) {
        const unsigned long long other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += other;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    unsigned long long before = sum - own;
    for (unsigned w = 0; w < warp; ++w) before += sums[w];
    const unsigned in_tile = (unsigned)before, in_row = (unsigned)(before >> 32) + counts[(row * 256ull + t) * tiles + tile];
    for (unsigned w = 0; w < WARPS; ++w) mine[w][t] += in_tile;
    offset[t] = in_row - in_tile;
    __syncthreads();
#pragma unroll
    for (unsigned r = 0; r < ROUNDS; ++r) {
        const unsigned at = first + r * 32 + lane;
        if (at < n) {
            const unsigned to = mine[warp][key[r] >> shift & 255u] + rank[r];
            tile_keys[to] = key[r];
            tile_positions[to] = positions ? positions[start + at] : at;
        }
    }
    __syncthreads();
    const unsigned made = min((unsigned)TILE, n - tile * TILE);
    for (unsigned i = t; i < made; i += 256) {
        const unsigned one = tile_keys[i];
        const unsigned long long to = start + (offset[one >> shift & 255u] + i);
        sorted[to] = one;
        order[to] = tile_positions[i];
    }
}
