#include <array>
#include <cstddef>

#include "core/dtype.h"
#include "core/error.h"
#include "kernels/cuda/tensor_map.h"
#if defined(__CUDACC__)
#include <cuda_runtime.h>
#endif

namespace switchyard::gpu {
namespace {

// Sizes, strides in elements, of which the first is 1, and the box; dims that are not there have 1.
struct Boxes {
  int rank;
  std::array<std::int64_t, 4> sizes, strides;
  std::array<int, 4> box;
};

#if defined(__CUDACC__)

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

TensorMap map_of(const void* data, const Boxes& boxes) {
  cuuint64_t sizes[4], strides[3];
  cuuint32_t box[4], steps[4];
  for (std::size_t i = 0; i < 4; ++i) {
    sizes[i] = static_cast<cuuint64_t>(boxes.sizes[i]);
    box[i] = static_cast<cuuint32_t>(boxes.box[i]);
    steps[i] = 1;
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(boxes.strides[i]) * sizeof(bfloat16);
  }
  TensorMap made;
  const CUresult result = encode_function()(
      &made.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(boxes.rank),
      const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    fail_runtime("[cuda] no tensor map of {} x {} x {} x {} elements, {}, {} and {} apart: error {}",
                 sizes[3], sizes[2], sizes[1], sizes[0], boxes.strides[3], boxes.strides[2], boxes.strides[1],
                 static_cast<int>(result));
  return made;
}

#else

// Checks what the driver checks.
TensorMap map_of(const void* data, const Boxes& boxes) {
  constexpr std::int64_t kChunk = 16 / sizeof(bfloat16);
  CHECK(reinterpret_cast<std::uintptr_t>(data) % 16 == 0, "[emulator] a tensor map of {}", data);
  emulator::Map map{.data = data, .element_bytes = sizeof(bfloat16), .rank = boxes.rank};
  for (std::size_t i = 0; i < 4; ++i) {
    const int most = i == 0 ? 64 : 256;
    CHECK((i == 0 || boxes.strides[i] % kChunk == 0) && boxes.sizes[i] > 0 && boxes.box[i] > 0 &&
              boxes.box[i] <= most,
          "[emulator] dim {} of a tensor map has {} elements, {} apart, in boxes of {}", i, boxes.sizes[i],
          boxes.strides[i], boxes.box[i]);
    map.sizes[i] = boxes.sizes[i];
    map.strides[i] = boxes.strides[i];
    map.box[i] = boxes.box[i];
  }
  return {.map = map};
}

#endif

}  // namespace

TensorMap tensor_map(const void* data, std::int64_t columns, std::int64_t rows, std::int64_t leading,
                     std::int64_t batch, std::int64_t stride, int box_columns, int box_rows) {
  return map_of(data, {.rank = 3,
                       .sizes = {columns, rows, batch, 1},
                       .strides = {1, leading, stride, 0},
                       .box = {box_columns, box_rows, 1, 1}});
}

TensorMap tensor_map(const void* data, const std::array<std::int64_t, 4>& sizes,
                     const std::array<std::int64_t, 3>& strides, int box_rows) {
  return map_of(data, {.rank = 4,
                       .sizes = sizes,
                       .strides = {1, strides[0], strides[1], strides[2]},
                       .box = {64, 1, box_rows, 1}});
}

}  // namespace switchyard::gpu
