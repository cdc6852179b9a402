// Shared memory of the other blocks of a cluster (PTX ISA: mapa, ld.shared::cluster).
#pragma once

#include "kernels/cuda/copy_engine.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)
#if defined(GPU_HAS_WGMMA) || !defined(__CUDA_ARCH__)

// The four numbers that block `rank` has where this block has `at`, a multiple of 16 bytes. The cluster meets
// between their writing and this, and again before a block ends.
GPU_FUNCTION Vector<float, 4> read_of_block(const float* at, int rank) {
  Vector<float, 4> x;
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %4, %5; "
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
      : "=f"(x.at[0]), "=f"(x.at[1]), "=f"(x.at[2]), "=f"(x.at[3])
      : "r"(shared_address(at)), "r"(rank)
      : "memory");
  return x;
}

#endif
#else

inline Vector<float, 4> read_of_block(const float* at, int rank) {
  return *static_cast<const Vector<float, 4>*>(emulator::cluster_address(at, rank));
}

#endif

}  // namespace switchyard::gpu
