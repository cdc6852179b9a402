#include "kernels/gpu/kernels.h"
#include "kernels/gpu/square_sums.h"
#include "kernels/gpu/wide.h"

namespace switchyard::gpu {
namespace {

template <typename T, int width>
GPU_KERNEL square_elements(const T* x, std::int64_t count, double* sums) {
  const std::int64_t begin = block_index() * kSquaresOfBlock,
                     end = begin + kSquaresOfBlock < count ? begin + kSquaresOfBlock : count;
  double squares = 0;
  for (std::int64_t i = begin + static_cast<std::int64_t>(thread_index()) * width; i < end;
       i += static_cast<std::int64_t>(kSquareThreads) * width) {
    float values[width];
    load_floats<width>(x + i, values);
    for (int k = 0; k < width; ++k)
      squares += static_cast<double>(values[k]) * static_cast<double>(values[k]);
  }
  put_block_sum(squares, sums);
}

GPU_KERNEL sum_blocks(const double* sums, std::int64_t count, double* total) {
  double sum = 0;
  for (std::int64_t i = thread_index(); i < count; i += kSquareThreads) sum += sums[i];
  put_block_sum(sum, total);
}

}  // namespace

double BlockSums::total() const {
  if (blocks_ == 0) return 0;
  launch({.blocks = 1, .threads = kSquareThreads}, sum_blocks, data(), blocks_, data() + blocks_);
  double total = 0;
  copy(sums_.view(DType::f64, {blocks_ + 1}).slice(0, blocks_, 1), TensorView::of_host(&total, {1}));
  return total;
}

double sum_of_squares(const TensorView& x) {
  const BlockSums sums(x, x.size());
  with_float_type(x.dtype(), [&]<typename T>(T) {
    const T* const data = x.device_data<T>();
    with_width<T>(x.size() % kWide<T> == 0 && are_wide({data}), [&](auto width) {
      launch(sums.blocks(), square_elements<T, width.value>, data, x.size(), sums.data());
    });
  });
  return sums.total();
}

}  // namespace switchyard::gpu
