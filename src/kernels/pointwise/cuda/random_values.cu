// Random numbers by their places in an array: a thread takes an element.
#include "core/rng_arithmetic.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/rounded.h"
#include "kernels/cuda/wide.h"
#include "kernels/pointwise/random_values_kernel.h"

namespace switchyard::gpu {
namespace {

// The block's dims, from the outermost to the innermost, those merged that follow each other without a gap in
// the array. `strides`: the array's, in elements.
struct BlockDims {
  int count = 0;
  std::int64_t sizes[kMostDims] = {}, strides[kMostDims] = {};
  std::int64_t first = 0;  // the index of the block's first element in the array

  void push(std::int64_t size, std::int64_t stride) {
    if (size == 1) return;
    const bool joins = count > 0 && strides[count - 1] == size * stride;
    const int at = joins ? count - 1 : count++;
    sizes[at] = joins ? sizes[at] * size : size;
    strides[at] = stride;
  }
};

BlockDims dims_of(const RandomValuesArgs& args) {
  BlockDims dims;
  const std::size_t rank = args.whole.size();
  std::int64_t stride = num_elements(args.whole);
  for (std::size_t i = 0; i < rank; ++i) {
    stride /= args.whole[i];
    dims.push(args.to.dim(i), stride);
    dims.first += args.start[i] * stride;
  }
  return dims;
}

GPU_FUNCTION std::int64_t index_in_array(const BlockDims& dims, std::int64_t i) {
  std::int64_t index = dims.first;
  for (int d = dims.count - 1; d > 0; --d) {
    index += i % dims.sizes[d] * dims.strides[d];
    i /= dims.sizes[d];
  }
  return dims.count == 0 ? index : index + i * dims.strides[0];
}

template <typename T>
GPU_KERNEL draw_normal(T* to, std::int64_t count, BlockDims dims, RngKey key, NormalRange range,
                       float factor) {
  const std::int64_t i = thread_of_grid();
  if (i >= count) return;
  const auto index = static_cast<std::uint64_t>(index_in_array(dims, i));
  auto a = static_cast<std::uint32_t>(index >> 32), b = static_cast<std::uint32_t>(index);
  rng::encrypt(key, a, b);
  const auto x = static_cast<float>(rng::normal_of<Rounded>(a ^ b, range.from, range.to));
  const float clipped = x < range.least ? range.least : (x > range.most ? range.most : x);
  to[i] = from_float<T>(rounded_product(clipped, factor));
}

template <typename T>
GPU_KERNEL fill(T* to, std::int64_t count, float value) {
  const std::int64_t i = thread_of_grid();
  if (i < count) to[i] = from_float<T>(value);
}

}  // namespace

void random_values(const RandomValuesArgs& args) {
  const std::int64_t count = args.to.size();
  if (count == 0) return;
  with_float_type(args.to.dtype(), [&]<typename T>(T) {
    T* const to = args.to.device_data<T>();
    if (args.range)
      launch(threads_for(count), draw_normal<T>, to, count, dims_of(args), args.key, *args.range,
             args.factor);
    else
      launch(threads_for(count), fill<T>, to, count, args.factor);
  });
}

}  // namespace switchyard::gpu
