// TensorMap: a tensor in the GPU's memory, and the box of it that the copy engine copies at once.
#pragma once

#include <array>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda.h>
#else
#include "emulator/async.h"
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

// The map of bfloat16 [sizes[3], sizes[2], sizes[1], sizes[0]]: the last is contiguous, the others are
// strides[2], [1] and [0] elements apart. A box has `box_rows` places of dim 2, of 64 of the contiguous one
// and one of the others. Otherwise as above.
TensorMap tensor_map(const void* data, const std::array<std::int64_t, 4>& sizes,
                     const std::array<std::int64_t, 3>& strides, int box_rows);

}  // namespace switchyard::gpu
