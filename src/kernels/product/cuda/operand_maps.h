// Operands of products as the copy engine takes them. For the host.
#pragma once

#include "kernels/cuda/tensor_map.h"
#include "kernels/product/cuda/product_parts.h"

namespace switchyard::gpu {

// [batch, rows, columns] in memory, copied in boxes of `box_rows` rows of 64 columns.
inline TensorMap map_of(const void* data, std::int64_t columns, std::int64_t rows, std::int64_t leading,
                        std::int64_t batch, std::int64_t stride, int box_rows) {
  const bool batched = stride != 0 && batch > 1;
  return tensor_map(data, columns, rows, leading, batched ? batch : 1, batched ? stride : leading * rows,
                    kTileWidth, box_rows);
}

}  // namespace switchyard::gpu
