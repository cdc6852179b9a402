// TensorMap: a tensor in the GPU's memory, and the box of it that the copy engine copies at once.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#include <cuda.h>
#else
#include "kernels/cuda/emulator_async.h"
#endif

namespace switchyard::gpu {

struct TensorMap {
#if defined(__CUDACC__)
  CUtensorMap map;
#else
  emulator::Map map;
#endif
};

// The map of bfloat16 [batch, rows, columns]: rows `leading` elements apart, matrices `stride`. A box has
// `box_rows` rows of `box_columns` columns, in shared memory with the 128-byte swizzle: 64 columns at most.
// Places outside of the tensor become 0. The data stands at a multiple of 16 bytes, rows and matrices are
// such multiples apart. Error(runtime) where the driver refuses.
TensorMap tensor_map(const void* data, std::int64_t columns, std::int64_t rows, std::int64_t leading,
                     std::int64_t batch, std::int64_t stride, int box_columns, int box_rows);

}  // namespace switchyard::gpu
