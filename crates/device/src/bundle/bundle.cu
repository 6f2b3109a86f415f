// Moves words between one transfer's place and the many that they belong to: `mod.rs` beside this file makes the table.
//
// This text is compiled at run time as it is.
//
// Thread mapping: each block moves one piece.

#define THREADS 256

struct Piece {
    unsigned* to;
    const unsigned* from;
    unsigned long long words;
};

extern "C" __global__ void __launch_bounds__(THREADS) move_words(const Piece* __restrict__ pieces) {
    const Piece piece = pieces[blockIdx.x];
    #pragma unroll 4
    for (unsigned long long i = threadIdx.x; i < piece.words; i += THREADS) piece.to[i] = piece.from[i];
}
