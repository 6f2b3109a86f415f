// Asynchronous copies of parts of a row from global to shared memory, for one warp. Parts start at multiples of 16 bytes and are
// multiples of 16 bytes long. From sm_90 on a part is one bulk copy that completes on an mbarrier; before, each lane copies its
// share with cp.async.
#define BULK (__CUDA_ARCH__ >= 900)

struct RowCopy {
#if BULK
    unsigned barrier, phase;
#endif

    // `memory` is the warp's mbarrier; `parts` are started between two waits.
    __device__ __forceinline__ RowCopy(unsigned long long* memory, int parts) {
#if BULK
        barrier = (unsigned)__cvta_generic_to_shared(memory);
        phase = 0;
        if (threadIdx.x % 32 == 0)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\nfence.mbarrier_init.release.cluster;" ::"r"(barrier), "r"(parts) : "memory");
        written();
        __syncwarp();
#endif
    }
    // Orders this lane's stores to the memory of a part before the copies that start after the warp's next barrier.
    __device__ __forceinline__ void written() {
#if BULK
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    }
    // Starts the copy of a part of `count` floats, possibly none. All lanes are done with its memory.
    __device__ __forceinline__ void start(float* to, const float* from, int count) {
        __syncwarp();
        const unsigned at = (unsigned)__cvta_generic_to_shared(to);
        const int lane = threadIdx.x % 32;
#if BULK
        if (lane) return;
        const int bytes = count > 0 ? 4 * count : 0;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
        if (bytes)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                         ::"r"(at), "l"(from), "r"(bytes), "r"(barrier) : "memory");
#else
        // Not fully unrolled: the addresses would take a row's registers.
#pragma unroll 2
        for (int j = 4 * lane; j < count; j += 128)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + 4 * j), "l"(from + j) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
    }
    // Waits for all parts that were started.
    __device__ __forceinline__ void wait() {
#if BULK
        asm volatile("{\n.reg .pred there;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n@!there bra again;\n}"
                     ::"r"(barrier), "r"(phase) : "memory");
        phase ^= 1;
#else
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncwarp();
#endif
    }
};
