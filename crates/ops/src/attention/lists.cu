// Lists of queries and keys: where their rows lie, and which pairs are open.

// How a mask is read; see the host's twin.
struct MaskView {
    u64 dims[8], strides[8], row, column;
};

// How lists lie inside rows: heads, and words from row to row of queries, of outputs, and of chains of dq under way.
struct Inside {
    unsigned heads, wide, narrow, chains;
};

// Where list z starts whose rows are `apart` words from each other.
template <int W> __device__ __forceinline__ u64 list_at(u64 z, unsigned n, unsigned heads, unsigned apart) {
    return (u64)((unsigned)z / heads * n) * apart + (unsigned)z % heads * W;
}

// Where the mask of row r of list z starts.
__device__ __forceinline__ u64 mask_at(const MaskView& view, u64 z, unsigned group, unsigned n, unsigned r) {
    u64 head = z * group + r / n, at = (r % n) * view.row;
#pragma unroll
    for (int a = 7; a >= 0 && head > 0; --a) {
        at += head % view.dims[a] * view.strides[a];
        head /= view.dims[a];
    }
    return at;
}

// Smallest and largest query index of rows from .. from + count - 1.
__device__ __forceinline__ void query_range(unsigned n, unsigned from, unsigned count, int& low, int& high) {
    const unsigned last = from + count - 1;
    if (DITTO_INSIDE) {
        low = (int)from;
        high = (int)last;
        return;
    }
    const bool one = from / n == last / n;
    low = one ? (int)(from % n) : 0;
    high = one ? (int)(last % n) : (int)n - 1;
}

__device__ __forceinline__ bool is_blocked(float x) { return __float_as_uint(x) == BLOCKED; }

// Query index of a row.
__device__ __forceinline__ int query_of(unsigned row, unsigned n) { return (int)(DITTO_INSIDE ? row : row % n); }

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
