// Copies of single threads (cp.async) whose end a barrier in shared memory counts (PTX ISA:
// cp.async.mbarrier.arrive), beside those of the copy engine.
#pragma once

#include "kernels/cuda/copy_engine.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)
#if defined(GPU_HAS_WGMMA) || !defined(__CUDA_ARCH__)

// copy_async() that also brings the 256 bytes around into the L2 cache: the next steps of a row want them.
GPU_FUNCTION void copy_async_ahead(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes)
               : "memory");
}
// One arrival, which the barrier's number of arrivals counts, when all copies that this thread has begun end.
GPU_FUNCTION void arrive_with_copies(std::uint64_t* at) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(at)) : "memory");
}

#endif
#else

inline void copy_async_ahead(void* to, const void* from, int bytes) {
  copy_async(to, from, bytes);
}
inline void arrive_with_copies(std::uint64_t* at) {
  emulator::arrive_with_copies(at);
}

#endif

}  // namespace switchyard::gpu
