// Matrix transpose by tiles through shared memory.
//
// Thread mapping: a block of 256 threads moves one 32 x 32 tile per turn, 8 rows at a time; both the
// reads and the writes of a warp are 32 neighbouring words. 4 bytes read and 4 written per element.
// The padding column keeps the transposed reads of the tile on different banks.

extern "C" __global__ void transpose_tiles(
    const float* __restrict__ in, float* __restrict__ out,
    unsigned long long rows, unsigned long long columns,
    unsigned long long down, unsigned long long across, unsigned long long tiles) {
    __shared__ float tile[32][33];
    const unsigned x = threadIdx.x % 32, y = threadIdx.x / 32;
    for (unsigned long long t = blockIdx.x; t < tiles; t += gridDim.x) {
        const unsigned long long batch = t / (down * across), rest = t % (down * across);
        const unsigned long long r0 = rest / across * 32, c0 = rest % across * 32;
        const float* src = in + batch * rows * columns;
        float* dst = out + batch * rows * columns;
        for (unsigned i = y; i < 32; i += 8) {
            if (r0 + i < rows && c0 + x < columns) tile[i][x] = src[(r0 + i) * columns + c0 + x];
        }
        __syncthreads();
        for (unsigned i = y; i < 32; i += 8) {
            if (c0 + i < columns && r0 + x < rows) dst[(c0 + i) * rows + r0 + x] = tile[x][i];
        }
        __syncthreads();
    }
}
