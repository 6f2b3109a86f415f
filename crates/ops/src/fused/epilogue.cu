// What kernels with an epilogue have in common. Before this text come the lines
//   EPILOGUE_X         inputs besides the op's result
//   EPILOGUE_Y         results
//   EPILOGUE_READS(i)  how input i is read: 0 at the place of the result, 1 at its column, 2 always the same element
//   epilogue(x, y)     the results y from the op's result x[0] and the inputs x[1]...

// Where the inputs lie, and the results but for the first. Arrays have at least one element.
struct Epilogue {
    const float* x[EPILOGUE_X > 0 ? EPILOGUE_X : 1];
    float* y[EPILOGUE_Y > 1 ? EPILOGUE_Y - 1 : 1];
};

__device__ __forceinline__ constexpr int epilogue_reads(int i) { return EPILOGUE_READS(i); }

// Stores what the epilogue makes of a single result, at its place and column.
__device__ __forceinline__ void epilogue_store(const Epilogue& f, float* out, unsigned long long at, unsigned long long column, float v) {
    float from[EPILOGUE_X + 1], to[EPILOGUE_Y];
    from[0] = v;
    #pragma unroll
    for (int i = 0; i < EPILOGUE_X; ++i) from[i + 1] = f.x[i][epilogue_reads(i) == 2 ? 0 : epilogue_reads(i) == 1 ? column : at];
    epilogue(from, to);
    out[at] = to[0];
    #pragma unroll
    for (int k = 1; k < EPILOGUE_Y; ++k) f.y[k - 1][at] = to[k];
}
