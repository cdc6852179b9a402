#include "core/dtype.h"
#include "core/error.h"
#include "kernels/cuda/tensor_map.h"
#if defined(__CUDACC__)
#include <cuda_runtime.h>
#endif

namespace switchyard::gpu {

#if defined(__CUDACC__)

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, which the program does not link.
Encode encode_function() {
  static const Encode function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    if (status != cudaSuccess || result != cudaDriverEntryPointSuccess)
      fail_runtime("[cuda] the driver has no cuTensorMapEncodeTiled: expected one of CUDA 12 or later");
    return reinterpret_cast<Encode>(found);
  }();
  return function;
}

}  // namespace

TensorMap tensor_map(const void* data, std::int64_t columns, std::int64_t rows, std::int64_t leading,
                     std::int64_t batch, std::int64_t stride, int box_columns, int box_rows) {
  const auto u = [](std::int64_t x) { return static_cast<cuuint64_t>(x); };
  const cuuint64_t sizes[3] = {u(columns), u(rows), u(batch)};
  const cuuint64_t strides[2] = {u(leading) * sizeof(bfloat16), u(stride) * sizeof(bfloat16)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows), 1},
                   steps[3] = {1, 1, 1};
  TensorMap made;
  const CUresult result =
      encode_function()(&made.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), sizes,
                        strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    fail_runtime("[cuda] no tensor map of {} x {} elements, rows {} apart, {} of them {} apart: error {}",
                 rows, columns, leading, batch, stride, static_cast<int>(result));
  return made;
}

#else

// Checks what the driver checks.
TensorMap tensor_map(const void* data, std::int64_t columns, std::int64_t rows, std::int64_t leading,
                     std::int64_t batch, std::int64_t stride, int box_columns, int box_rows) {
  constexpr std::int64_t kChunk = 16 / sizeof(bfloat16);
  CHECK(reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && leading % kChunk == 0 && stride % kChunk == 0,
        "[emulator] a tensor map of {}, rows {} apart, matrices {}", data, leading, stride);
  CHECK(columns > 0 && rows > 0 && batch > 0 && box_columns > 0 && box_columns <= 64 && box_rows > 0 &&
            box_rows <= 256,
        "[emulator] a tensor map of {} x {} x {} in boxes of {} x {}", batch, rows, columns, box_rows,
        box_columns);
  return {.map = {.data = data,
                  .element_bytes = sizeof(bfloat16),
                  .rank = 3,
                  .sizes = {columns, rows, batch, 1, 1},
                  .strides = {1, leading, stride, 0, 0},
                  .box = {box_columns, box_rows, 1, 1, 1}}};
}

#endif

}  // namespace switchyard::gpu
