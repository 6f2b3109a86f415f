// Spreads words that came in one transfer over where they belong: `mod.rs` beside this file collects them.
//
// This text is compiled at run time as it is.
//
// Thread mapping: each block moves one piece. `staged` begins with an entry of four words for each piece: the low and high word of
// the address it goes to, the word of `staged` that it begins at, and how many words it has.

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS) spread(const unsigned* __restrict__ staged) {
    const uint4 piece = reinterpret_cast<const uint4*>(staged)[blockIdx.x];
    unsigned* to = reinterpret_cast<unsigned*>((unsigned long long)piece.y << 32 | piece.x);
    const unsigned* from = staged + piece.z;
    #pragma unroll 4
    for (unsigned i = threadIdx.x; i < piece.w; i += THREADS) to[i] = from[i];
}
