// The streams of this process's GPU (core/gpu.h), for CUDA's own files.
#pragma once

#include <cuda_runtime_api.h>

namespace switchyard::gpu {

struct Streams {
  cudaStream_t computation, communication, transfers;
};
Streams streams();

}  // namespace switchyard::gpu
