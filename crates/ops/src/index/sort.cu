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
// consecutive ones. A pass counts the digits of every tile, sums the counts (by row, then digit, then tile) and moves each
// key to its place, which is in its row. Lanes with equal digits find each other by `__match_any_sync`, and one of them counts for all, so no two
// threads touch one counter. 16 bytes read and 8 written per key and pass.

#define WARPS 8
#define ROUNDS 16
#define TILE (WARPS * ROUNDS * 32)

// Counts the digits of a warp's keys in `counts`. With `rank`, also counts for each of a lane's keys how many earlier
// keys of the warp have the same digit.
__device__ __forceinline__ void count_digits(const unsigned* keys, unsigned n, unsigned shift, unsigned first, unsigned* counts, unsigned* key, unsigned* rank) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned r = 0; r < ROUNDS; ++r) {
        const unsigned at = first + r * 32 + lane;
        const bool there = at < n;
        key[r] = there ? keys[at] : 0;
        // Lanes past the end get a digit that no key has.
        const unsigned digit = there ? key[r] >> shift & 255u : 256u;
        const unsigned peers = __match_any_sync(0xffffffffu, digit);
        const unsigned before = __popc(peers & ((1u << lane) - 1));
        const unsigned earlier = there ? counts[digit] : 0;
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

// Exclusive prefix sum of `m` counts (a multiple of 16), in place. One block of 1024 threads; each thread takes 16
// neighbouring counts per turn.
extern "C" __global__ void __launch_bounds__(1024) radix_sum(unsigned* __restrict__ counts, unsigned long long m) {
    __shared__ unsigned totals[32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned carry = 0;
    for (unsigned long long base = 0; base < m; base += 16384) {
        const unsigned long long at = base + threadIdx.x * 16;
        uint4 v[4];
        unsigned own = 0;
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            v[i] = at < m ? reinterpret_cast<const uint4*>(counts + at)[i] : make_uint4(0, 0, 0, 0);
            own += v[i].x + v[i].y + v[i].z + v[i].w;
        }
        unsigned sum = own;
        for (unsigned d = 1; d < 32; d *= 2) {
            const unsigned other = __shfl_up_sync(0xffffffffu, sum, d);
            if (lane >= d) sum += other;
        }
        if (lane == 31) totals[warp] = sum;
        __syncthreads();
        unsigned before = carry, all = carry;
        for (unsigned w = 0; w < 32; ++w) {
            if (w < warp) before += totals[w];
            all += totals[w];
        }
        carry = all;
        unsigned next = before + sum - own;
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            const uint4 c = v[i];
            const uint4 s = make_uint4(next, next + c.x, next + c.x + c.y, next + c.x + c.y + c.z);
            next = s.w + c.w;
            if (at < m) reinterpret_cast<uint4*>(counts + at)[i] = s;
        }
        __syncthreads();
    }
}

// `positions` is null in the first pass: key i of a row is at position i.
extern "C" __global__ void __launch_bounds__(256) radix_move(const unsigned* __restrict__ keys, const unsigned* __restrict__ positions, unsigned n, unsigned tiles, unsigned shift,
                                                             const unsigned* __restrict__ sums, unsigned* __restrict__ sorted, unsigned* __restrict__ order) {
    __shared__ unsigned mine[WARPS][256];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (unsigned w = 0; w < WARPS; ++w) mine[w][threadIdx.x] = 0;
    __syncthreads();
    unsigned key[ROUNDS], rank[ROUNDS];
    const unsigned row = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    const unsigned first = tile * TILE + warp * (ROUNDS * 32);
    keys += (unsigned long long)row * n;
    count_digits(keys, n, shift, first, mine[warp], key, rank);
    __syncthreads();
    unsigned next = sums[(row * 256ull + threadIdx.x) * tiles + tile];
    for (unsigned w = 0; w < WARPS; ++w) {
        const unsigned count = mine[w][threadIdx.x];
        mine[w][threadIdx.x] = next;
        next += count;
    }
    __syncthreads();
#pragma unroll
    for (unsigned r = 0; r < ROUNDS; ++r) {
        const unsigned at = first + r * 32 + lane;
        if (at < n) {
            const unsigned to = mine[warp][key[r] >> shift & 255u] + rank[r];
            sorted[to] = key[r];
            order[to] = positions ? positions[(unsigned long long)row * n + at] : at;
        }
    }
}
