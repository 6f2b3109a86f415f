// What kernels of products in digits share on compute capability 9.0: `wgmma`, and barriers that count bytes.

#if DITTO_HOPPER

// Columns of a `wgmma`.
constexpr int ACROSS = DIGITS == 2 ? 128 : 96;

#if DITTO_DIGITS == 2
// s += a b, for 64 rows, 128 columns and 32 steps of k.
__device__ __forceinline__ void multiply(int (&s)[64], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, %64, %65, 1;"
                 : "+r"(s[0]), "+r"(s[1]), "+r"(s[2]), "+r"(s[3]), "+r"(s[4]), "+r"(s[5]), "+r"(s[6]), "+r"(s[7]),
                   "+r"(s[8]), "+r"(s[9]), "+r"(s[10]), "+r"(s[11]), "+r"(s[12]), "+r"(s[13]), "+r"(s[14]), "+r"(s[15]),
                   "+r"(s[16]), "+r"(s[17]), "+r"(s[18]), "+r"(s[19]), "+r"(s[20]), "+r"(s[21]), "+r"(s[22]), "+r"(s[23]),
                   "+r"(s[24]), "+r"(s[25]), "+r"(s[26]), "+r"(s[27]), "+r"(s[28]), "+r"(s[29]), "+r"(s[30]), "+r"(s[31]),
                   "+r"(s[32]), "+r"(s[33]), "+r"(s[34]), "+r"(s[35]), "+r"(s[36]), "+r"(s[37]), "+r"(s[38]), "+r"(s[39]),
                   "+r"(s[40]), "+r"(s[41]), "+r"(s[42]), "+r"(s[43]), "+r"(s[44]), "+r"(s[45]), "+r"(s[46]), "+r"(s[47]),
                   "+r"(s[48]), "+r"(s[49]), "+r"(s[50]), "+r"(s[51]), "+r"(s[52]), "+r"(s[53]), "+r"(s[54]), "+r"(s[55]),
                   "+r"(s[56]), "+r"(s[57]), "+r"(s[58]), "+r"(s[59]), "+r"(s[60]), "+r"(s[61]), "+r"(s[62]), "+r"(s[63])
                 : "l"(a), "l"(b));
}
#else
// s += a b, for 64 rows, 96 columns and 32 steps of k.
__device__ __forceinline__ void multiply(int (&s)[48], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n96k32.s32.s8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
                 "}, %48, %49, 1;"
                 : "+r"(s[0]), "+r"(s[1]), "+r"(s[2]), "+r"(s[3]), "+r"(s[4]), "+r"(s[5]), "+r"(s[6]), "+r"(s[7]),
                   "+r"(s[8]), "+r"(s[9]), "+r"(s[10]), "+r"(s[11]), "+r"(s[12]), "+r"(s[13]), "+r"(s[14]), "+r"(s[15]),
                   "+r"(s[16]), "+r"(s[17]), "+r"(s[18]), "+r"(s[19]), "+r"(s[20]), "+r"(s[21]), "+r"(s[22]), "+r"(s[23]),
                   "+r"(s[24]), "+r"(s[25]), "+r"(s[26]), "+r"(s[27]), "+r"(s[28]), "+r"(s[29]), "+r"(s[30]), "+r"(s[31]),
                   "+r"(s[32]), "+r"(s[33]), "+r"(s[34]), "+r"(s[35]), "+r"(s[36]), "+r"(s[37]), "+r"(s[38]), "+r"(s[39]),
                   "+r"(s[40]), "+r"(s[41]), "+r"(s[42]), "+r"(s[43]), "+r"(s[44]), "+r"(s[45]), "+r"(s[46]), "+r"(s[47])
                 : "l"(a), "l"(b));
}
#endif

// How tensor cores find a tile in shared memory: rows of 64 bytes, groups of 8 rows 512 bytes apart, 64-byte swizzle.
__device__ __forceinline__ u64 tile_at(const unsigned char* p) {
    return (u64)((shared_address(p) & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(512 >> 4) << 32 | (u64)2 << 62;
}

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

// Begins to add a stage's products to the sums: 64 rows of digits `next_a` bytes apart from `a` on, and ACROSS
// columns of digits `next_b` bytes apart from `b` on.
__device__ __forceinline__ void multiply_stage(int (&sums)[WEIGHTS][ACROSS / 2], const unsigned char* a, int next_a, const unsigned char* b,
                                               int next_b) {
    const u64 first_a = tile_at(a), first_b = tile_at(b);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int step = 0; step < KB / 32; ++step) {
        all_pairs([&](int i, int j, int weight) {
            const u64 at_a = first_a + i * (next_a / 16) + step * 2, at_b = first_b + j * (next_b / 16) + step * 2;
            multiply(sums[weight], at_a, at_b);
        });
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Adds the products of the next `count` stages of a ring to the sums: 64 rows and ACROSS columns of digits, as in `multiply_stage`, from
// `a` and `b` on in its first stage. A stage may be filled again when the products of the one after it have begun.
template <int STAGES, int STAGE>
__device__ __forceinline__ void multiply_stages(int (&sums)[WEIGHTS][ACROSS / 2], int count, int& stage, int& phase, const unsigned char* a,
                                                int next_a, const unsigned char* b, int next_b, u64* full, u64* empty, bool is_first_thread) {
    int last = -1;
    for (int i = 0; i < count; ++i) {
        barrier_wait(full + stage, phase);
        multiply_stage(sums, a + stage * STAGE, next_a, b + stage * STAGE, next_b);
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (last >= 0 && is_first_thread) barrier_arrive(empty + last);
        last = stage;
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (last >= 0 && is_first_thread) barrier_arrive(empty + last);
}

#endif
