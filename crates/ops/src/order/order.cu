// Order along the last axis. An element is a 64-bit word: the key of its number above, its position below. Words are
// distinct, so sorts and selections have one result, whatever the order in which threads work.

// Orders as the numbers do: -0 as +0, NaN above everything.
__device__ __forceinline__ unsigned key_of(float x) {
    if (x != x) return 0xffffffffu;
    const unsigned b = __float_as_uint(__fadd_rn(x, 0.0f));
    return (b & 0x80000000u) ? ~b : (b | 0x80000000u);
}

// `flip` is all ones to order from the largest.
__device__ __forceinline__ unsigned long long word_of(float x, unsigned flip, unsigned position) {
    return ((unsigned long long)(key_of(x) ^ flip) << 32) | position;
}

#define EACH(i, total) \
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < total; i += (unsigned long long)gridDim.x * blockDim.x)

extern "C" __global__ void encode_keys(const float* __restrict__ x, unsigned* __restrict__ keys, unsigned long long total, unsigned flip) {
    EACH(i, total) keys[i] = key_of(x[i]) ^ flip;
}

// The first `k` of every `n` positions.
extern "C" __global__ void copy_first(const unsigned* __restrict__ order, unsigned* __restrict__ out, unsigned long long total, unsigned n, unsigned k) {
    EACH(i, total) out[i] = order[i / k * n + i % k];
}

// Where a word lies in shared memory: one of every nine places stays free, so that threads with words at a distance use
// different banks. `total` words take `total / 8 * 9` places.
__device__ __forceinline__ unsigned place_of(unsigned i) { return i + i / 8; }

// Orders each pair of the eight words that are STEP apart.
template <unsigned STEP>
__device__ __forceinline__ void exchange(unsigned long long (&w)[8], unsigned up) {
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
        if (i & STEP) continue;
        const unsigned long long a = w[i], b = w[i + STEP];
        const bool swap = (a > b) == (up >> i & 1u);
        w[i] = swap ? b : a;
        w[i + STEP] = swap ? a : b;
    }
}

// Bitonic sort of `total` words in shared memory, in groups of `size`; both are powers of two, and at least 8. Begins and
// ends with a barrier. A thread takes eight words at a time, `unit` apart, for up to three steps of the sort. With units up to 32
// the words of a warp stay in its own 256, so warps need not wait for each other then.
__device__ __forceinline__ void sort_shared(unsigned long long* words, unsigned total, unsigned size) {
    unsigned before = 64;
    for (unsigned run = 8; run <= size; run *= 2) {
        for (unsigned distance = run / 2; distance > 0; distance /= 8) {
            const unsigned unit = max(distance / 4, 1u);
            if (unit > 32 || before > 32) __syncthreads(); else __syncwarp();
            before = unit;
            for (unsigned t = threadIdx.x; t < total / 8; t += blockDim.x) {
                const unsigned low = t & (unit - 1), first = (t - low) * 8 + low;
                unsigned long long w[8];
#pragma unroll
                for (unsigned i = 0; i < 8; ++i) w[i] = words[place_of(first + i * unit)];
                if (run == 8) {
                    exchange<1>(w, 0x11u);
                    exchange<2>(w, 0x03u);
                    exchange<1>(w, 0x05u);
                }
                const unsigned up = ((first & (size - 1)) & run) == 0 ? 0xffu : 0u;
                if (distance >= 4) exchange<4>(w, up);
                if (distance >= 2) exchange<2>(w, up);
                exchange<1>(w, up);
#pragma unroll
                for (unsigned i = 0; i < 8; ++i) words[place_of(first + i * unit)] = w[i];
            }
        }
    }
    __syncthreads();
}

// Rows of up to `padded` elements, a power of two; a block sorts `per` of them and writes the first `k` positions of each.
// 9 bytes of shared memory per element; 4 bytes read, 4 written.
extern "C" __global__ void __launch_bounds__(1024) sort_short_rows(const float* __restrict__ x, unsigned* __restrict__ out, unsigned long long rows, unsigned n,
                                                                   unsigned k, unsigned padded, unsigned per, unsigned flip) {
    extern __shared__ unsigned long long words[];
    const unsigned total = padded * per;
    for (unsigned long long first = blockIdx.x * (unsigned long long)per; first < rows; first += (unsigned long long)gridDim.x * per) {
        const unsigned made = (unsigned)min((unsigned long long)per, rows - first);
        for (unsigned t = threadIdx.x; t < total; t += blockDim.x) {
            const unsigned row = t / padded, i = t & (padded - 1);
            // Padding sorts after every element.
            words[place_of(t)] = row < made && i < n ? word_of(x[(first + row) * n + i], flip, i) : ~0ull;
        }
        sort_shared(words, total, padded);
        for (unsigned t = threadIdx.x; t < made * k; t += blockDim.x) {
            const unsigned row = t / k, i = t - row * k;
            out[first * k + t] = (unsigned)words[place_of(row * padded + i)];
        }
        __syncthreads();
    }
}

// The first `k` positions in its order of each of `parts` parts of a row of `n`, or, with `from`, of `n_from` positions of the
// row. A block of 1024 threads has a part. The word of the last of them is
// found digit by digit, 8 bits at a time from the top: count the digits of all words that agree so far, and take the
// digit in which the `k`-th word lies. It ends as soon as all words of that digit are wanted, after two to four rounds
// for most rows. Then the words up to it are collected and sorted; `padded` is `k` rounded up to a power of two.
// A part is read once per round, the later times from the cache.
#define LOADS 8
extern "C" __global__ void __launch_bounds__(1024) select_first(const float* __restrict__ x, const unsigned* __restrict__ from, unsigned* __restrict__ out, unsigned n,
                                                                unsigned n_from, unsigned parts, unsigned k, unsigned padded, unsigned flip) {
    extern __shared__ unsigned long long words[];
    __shared__ unsigned counts[256];
    __shared__ unsigned chosen[3];
    const unsigned lane = threadIdx.x % 32;
    const unsigned row = blockIdx.x / parts, part = blockIdx.x % parts;
    x += row * (unsigned long long)n;
    if (from) from += row * (unsigned long long)n_from;
    const unsigned long long total = from ? n_from : n;
    const unsigned long long begin = total * part / parts, end = total * (part + 1) / parts;
    // The words of a thread of the elements from `base` on; those past the end come last of all.
    const auto read = [&](unsigned long long base, unsigned long long (&word)[LOADS]) {
        unsigned position[LOADS];
        float v[LOADS];
#pragma unroll
        for (unsigned u = 0; u < LOADS; ++u) {
            const unsigned long long at = base + u * 1024 + threadIdx.x;
            position[u] = at >= end ? 0u : from ? from[at] : (unsigned)at;
        }
#pragma unroll
        for (unsigned u = 0; u < LOADS; ++u) v[u] = base + u * 1024 + threadIdx.x < end ? x[position[u]] : 0.0f;
#pragma unroll
        for (unsigned u = 0; u < LOADS; ++u)
            word[u] = base + u * 1024 + threadIdx.x < end ? word_of(v[u], flip, position[u]) : ~0ull;
    };
    unsigned long long prefix = 0;
    unsigned need = k;
    int shift = 56;
    for (;; shift -= 8) {
        if (threadIdx.x < 256) counts[threadIdx.x] = 0;
        __syncthreads();
        const unsigned long long mask = shift == 56 ? 0 : ~0ull << (shift + 8);
        for (unsigned long long base = begin; base < end; base += 1024 * LOADS) {
            unsigned long long word[LOADS];
            read(base, word);
#pragma unroll
            for (unsigned u = 0; u < LOADS; ++u) {
                const bool agrees = word[u] != ~0ull && (word[u] & mask) == prefix;
                if (__any_sync(0xffffffffu, agrees)) {
                    // Lanes with equal digits find each other, and one of them counts for all.
                    const unsigned digit = agrees ? (unsigned)(word[u] >> shift) & 255u : 256u;
                    const unsigned peers = __match_any_sync(0xffffffffu, digit);
                    if (agrees && (peers & ((1u << lane) - 1)) == 0) atomicAdd(&counts[digit], __popc(peers));
                }
            }
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            unsigned mine[8], own = 0;
#pragma unroll
            for (unsigned i = 0; i < 8; ++i) own += mine[i] = counts[lane * 8 + i];
            unsigned sum = own;
            for (unsigned d = 1; d < 32; d *= 2) {
                const unsigned other = __shfl_up_sync(0xffffffffu, sum, d);
                if (lane >= d) sum += other;
            }
            unsigned below = sum - own;
#pragma unroll
            for (unsigned i = 0; i < 8; ++i) {
                if (below < need && need <= below + mine[i]) {
                    chosen[0] = lane * 8 + i;
                    chosen[1] = need - below;
                    chosen[2] = mine[i];
                }
                below += mine[i];
            }
        }
        __syncthreads();
        prefix |= (unsigned long long)chosen[0] << shift;
        need = chosen[1];
        if (need == chosen[2] || shift == 0) break;
        __syncthreads();
    }
    const unsigned long long last = prefix | ((1ull << shift) - 1);
    __syncthreads();
    if (threadIdx.x == 0) chosen[0] = 0;
    for (unsigned t = k + threadIdx.x; t < padded; t += 1024) words[place_of(t)] = ~0ull;
    __syncthreads();
    for (unsigned long long base = begin; base < end; base += 1024 * LOADS) {
        unsigned long long word[LOADS];
        read(base, word);
#pragma unroll
        for (unsigned u = 0; u < LOADS; ++u) {
            // Places are taken in any order; the sort below makes the order one.
            if (word[u] != ~0ull && word[u] <= last) words[place_of(atomicAdd(&chosen[0], 1u))] = word[u];
        }
    }
    __syncthreads();
    sort_shared(words, padded, padded);
    for (unsigned t = threadIdx.x; t < k; t += 1024) out[blockIdx.x * (unsigned long long)k + t] = (unsigned)words[place_of(t)];
}

// For each element of a row, the position of the largest word up to it. Equal numbers have larger words at later
// positions. A block per row; a thread takes 4 neighbouring elements per turn.
extern "C" __global__ void __launch_bounds__(1024) running(const float* __restrict__ x, unsigned* __restrict__ out, unsigned n, int smallest) {
    __shared__ unsigned long long totals[32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x += blockIdx.x * (unsigned long long)n;
    out += blockIdx.x * (unsigned long long)n;
    unsigned long long carry = 0;
    for (unsigned long long base = 0; base < n; base += 4 * blockDim.x) {
        const unsigned long long at = base + 4 * threadIdx.x;
        unsigned long long w[4], own = 0;
#pragma unroll
        for (unsigned u = 0; u < 4; ++u) {
            w[u] = 0;
            if (at + u < n) {
                const float v = x[at + u];
                w[u] = word_of(smallest ? -v : v, 0, (unsigned)(at + u));
            }
            own = max(own, w[u]);
        }
        unsigned long long most = own;
        for (unsigned d = 1; d < 32; d *= 2) {
            const unsigned long long other = __shfl_up_sync(0xffffffffu, most, d);
            if (lane >= d) most = max(most, other);
        }
        if (lane == 31) totals[warp] = most;
        __syncthreads();
        unsigned long long before = carry;
        for (unsigned i = 0; i < warps; ++i) {
            if (i < warp) before = max(before, totals[i]);
            carry = max(carry, totals[i]);
        }
        const unsigned long long left = __shfl_up_sync(0xffffffffu, most, 1);
        if (lane > 0) before = max(before, left);
#pragma unroll
        for (unsigned u = 0; u < 4; ++u) {
            before = max(before, w[u]);
            if (at + u < n) out[at + u] = (unsigned)before;
        }
        __syncthreads();
    }
}

// Where each value belongs in its sorted list of `n`, by halves. `per` values share a list.
extern "C" __global__ void search(const float* __restrict__ lists, const float* __restrict__ values, unsigned* __restrict__ out, unsigned long long total,
                                  unsigned long long per, unsigned n, int right) {
    EACH(i, total) {
        const float* list = lists + i / per * n;
        const float x = values[i];
        unsigned low = 0, high = n;
        while (low < high) {
            const unsigned middle = low + (high - low) / 2;
            const float v = list[middle];
            if (right ? v > x : v >= x) high = middle; else low = middle + 1;
        }
        out[i] = low;
    }
}
