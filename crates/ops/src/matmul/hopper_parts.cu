// What kernels of products in digits share on compute capability 9.0: `wgmma`, and barriers that count bytes. DITTO_ACROSS are the columns
// of a `wgmma`: 96, or in `turbo` also 128.

#if DITTO_HOPPER

constexpr int ACROSS = DITTO_ACROSS;

// ACCUMULATE(c): the registers of sums as operands of an instruction, with constraint c; ACCUMULATORS: their names there.
#define NAMES_48 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_48(c) \
    c(s[0]), c(s[1]), c(s[2]), c(s[3]), c(s[4]), c(s[5]), c(s[6]), c(s[7]), c(s[8]), c(s[9]), c(s[10]), c(s[11]), \
    c(s[12]), c(s[13]), c(s[14]), c(s[15]), c(s[16]), c(s[17]), c(s[18]), c(s[19]), c(s[20]), c(s[21]), c(s[22]), c(s[23]), \
    c(s[24]), c(s[25]), c(s[26]), c(s[27]), c(s[28]), c(s[29]), c(s[30]), c(s[31]), c(s[32]), c(s[33]), c(s[34]), c(s[35]), \
    c(s[36]), c(s[37]), c(s[38]), c(s[39]), c(s[40]), c(s[41]), c(s[42]), c(s[43]), c(s[44]), c(s[45]), c(s[46]), c(s[47])
#if DITTO_ACROSS == 128
#define SHAPE "m64n128k32"
#define ACCUMULATORS NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OPERANDS "%64, %65"
#define ACCUMULATE(c) \
    REGISTERS_48(c), c(s[48]), c(s[49]), c(s[50]), c(s[51]), c(s[52]), c(s[53]), c(s[54]), c(s[55]), \
    c(s[56]), c(s[57]), c(s[58]), c(s[59]), c(s[60]), c(s[61]), c(s[62]), c(s[63])
#else
#define SHAPE "m64n96k32"
#define ACCUMULATORS NAMES_48
#define OPERANDS "%48, %49"
#define ACCUMULATE(c) REGISTERS_48(c)
#endif

// s += a b, or s = a b if these are the first ones, for 64 rows, ACROSS columns and 32 steps of k.
template <bool IS_FIRST> __device__ __forceinline__ void multiply(int (&s)[ACROSS / 2], u64 a, u64 b) {
#define MULTIPLY(c, adds) \
    asm volatile("wgmma.mma_async.sync.aligned." SHAPE ".s32.s8.s8 {" ACCUMULATORS "}, " OPERANDS ", " adds ";" : ACCUMULATE(c) : "l"(a), "l"(b))
    if (IS_FIRST)
        MULTIPLY("=r", "0");
    else
        MULTIPLY("+r", "1");
#undef MULTIPLY
}

// How tensor cores find lines of a tile in shared memory, and 32 more steps of k, in 16 bytes. INTERLEAVE: 16 bytes of a line that lie next to each other, see
// `place_in`, with the swizzle of as many bytes.
template <int INTERLEAVE> struct Lines {
    static constexpr int STEP = INTERLEAVE == 4 ? 2 : 2 * ACROSS;
    static __device__ __forceinline__ u64 at(const unsigned char* p) {
        constexpr u64 SWIZZLE = INTERLEAVE == 4 ? 2 : INTERLEAVE == 2 ? 3 : 0, NEXT_16 = INTERLEAVE == 1 ? ACROSS : 1, NEXT_8_LINES = 8 * INTERLEAVE;
        return (u64)((shared_address(p) & 0x3ffff) >> 4) | NEXT_16 << 16 | NEXT_8_LINES << 32 | SWIZZLE << 62;
    }
};

__device__ __forceinline__ void barrier_init(u64* barrier, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count));
}
__device__ __forceinline__ void barrier_wait(u64* barrier, int phase) {
    asm volatile("{.reg .pred p; wait: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra wait;}"
                 ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and announces bytes that will be copied.
__device__ __forceinline__ void barrier_arrive(u64* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy(unsigned char* to, const unsigned char* from, int bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

// Begins to add a stage's products to the sums, or to make them the sums if they are the first: 64 rows of digits `next_a` bytes apart from `a`
// on, and ACROSS columns of digits `next_b` bytes apart from `b` on.
template <int INTERLEAVE, bool IS_FIRST>
__device__ __forceinline__ void multiply_stage(int (&sums)[WEIGHTS][ACROSS / 2], const unsigned char* a, int next_a, const unsigned char* b,
                                               int next_b) {
    const u64 first_a = Lines<4>::at(a), first_b = Lines<INTERLEAVE>::at(b);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int step = 0; step < KB / 32; ++step) {
        int last = -1;
        all_pairs([&](int i, int j, int weight) {
            const u64 at_a = first_a + i * (next_a / 16) + step * Lines<4>::STEP, at_b = first_b + j * (next_b / 16) + step * Lines<INTERLEAVE>::STEP;
            if (IS_FIRST && step == 0 && weight != last)
                multiply<true>(sums[weight], at_a, at_b);
            else
                multiply<false>(sums[weight], at_a, at_b);
            last = weight;
        });
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// The sums of the products of the next `count` stages of a ring, at least one: 64 rows and ACROSS columns of digits, as in `multiply_stage`,
// from `a` and `b` on in its first stage. A stage may be filled again when the products of the one after it have begun.
template <int INTERLEAVE, int STAGES, int STAGE>
__device__ __forceinline__ void multiply_stages(int (&sums)[WEIGHTS][ACROSS / 2], int count, int& stage, int& phase, const unsigned char* a,
                                                int next_a, const unsigned char* b, int next_b, u64* full, u64* empty, bool is_first_thread) {
    int last = stage;
    barrier_wait(full + stage, phase);
    multiply_stage<INTERLEAVE, true>(sums, a + stage * STAGE, next_a, b + stage * STAGE, next_b);
    if (++stage == STAGES) stage = 0, phase ^= 1;
    for (int i = 1; i < count; ++i) {
        barrier_wait(full + stage, phase);
        multiply_stage<INTERLEAVE, false>(sums, a + stage * STAGE, next_a, b + stage * STAGE, next_b);
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (is_first_thread) barrier_arrive(empty + last);
        last = stage;
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (is_first_thread) barrier_arrive(empty + last);
}

#endif
