// Moves vectors of tokens to rows sorted by expert, and back. A block takes one row of the result and some of
// its columns; a thread takes 16 bytes where rows are multiples of it.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/moe/kernels.h"

namespace switchyard::gpu {
namespace {

constexpr int kRaggedRowsThreads = 128;
constexpr int kMostColumnBlocks = 8;

template <typename T, int width>
GPU_KERNEL gather(const T* x, const std::int32_t* index, const float* weights, T* out, std::int64_t m) {
  const std::int64_t row = block_index();
  const T* const from = x + index[row] * m;
  const float w = weights == nullptr ? 1.0f : weights[row];
  for (std::int64_t j = (block_index_y() * thread_count() + thread_index()) * width; j < m;
       j += static_cast<std::int64_t>(kMostColumnBlocks) * thread_count() * width) {
    auto values = *reinterpret_cast<const Vector<T, width>*>(from + j);
    if (weights != nullptr) {
      for (int i = 0; i < width; ++i) values.at[i] = from_float<T>(w * to_float(values.at[i]));
    }
    *reinterpret_cast<Vector<T, width>*>(out + row * m + j) = values;
  }
}

template <typename T, typename Out, int width>
GPU_KERNEL gather_reduce(const T* x, std::int64_t rows, const std::int32_t* position, const float* weights,
                         std::int64_t per_token, Out* out, std::int64_t m) {
  const std::int64_t token = block_index();
  for (std::int64_t j = (block_index_y() * thread_count() + thread_index()) * width; j < m;
       j += static_cast<std::int64_t>(kMostColumnBlocks) * thread_count() * width) {
    float sums[width];
    for (int i = 0; i < width; ++i) sums[i] = 0;
    for (std::int64_t assignment = token * per_token; assignment < (token + 1) * per_token; ++assignment) {
      const std::int64_t at = position[assignment];
      if (at < 0 || at >= rows) continue;
      const float w = weights == nullptr ? 1.0f : weights[assignment];
      const auto values = *reinterpret_cast<const Vector<T, width>*>(x + at * m + j);
      for (int i = 0; i < width; ++i) sums[i] += w * to_float(values.at[i]);
    }
    for (int i = 0; i < width; ++i) out[token * m + j + i] = from_float<Out>(sums[i]);
  }
}

// A warp takes an assignment.
template <typename T>
GPU_KERNEL row_dot(const T* dy, const T* x, std::int64_t rows, const std::int32_t* position,
                   std::int64_t count, std::int64_t per_token, float* dw, std::int64_t m) {
  const std::int64_t assignment = block_index() * (thread_count() / kWarp) + thread_index() / kWarp;
  if (assignment >= count) return;  // a whole warp
  const std::int64_t at = position[assignment];
  float sum = 0;
  if (at >= 0 && at < rows) {
    for (std::int64_t j = thread_index() % kWarp; j < m; j += kWarp)
      sum += to_float(dy[assignment / per_token * m + j]) * to_float(x[at * m + j]);
  }
  sum = warp_sum(sum);
  if (thread_index() % kWarp == 0) dw[assignment] = sum;
}

Launch row_blocks(std::int64_t rows, std::int64_t m, int width) {
  const std::int64_t wanted = divide_up(m, std::int64_t{kRaggedRowsThreads} * width);
  return {.blocks = m > 0 ? rows : 0,
          .threads = kRaggedRowsThreads,
          .blocks_y = kMostColumnBlocks < wanted ? kMostColumnBlocks : static_cast<int>(wanted)};
}

}  // namespace

void ragged_gather(const RaggedGatherArgs& args) {
  const std::int64_t rows = args.index.size(), m = args.x.dim(1);
  const auto* const index = args.index.device_data<std::int32_t>();
  const float* const weights = args.w.device_data<float>();
  with_float_type(args.x.dtype(), [&]<typename T>(T) {
    const T* const x = args.x.device_data<T>();
    T* const out = args.out.device_data<T>();
    if (m % kWide<T> == 0 && are_wide({x, out}))
      launch(row_blocks(rows, m, kWide<T>), gather<T, kWide<T>>, x, index, weights, out, m);
    else
      launch(row_blocks(rows, m, 1), gather<T, 1>, x, index, weights, out, m);
  });
}

void ragged_gather_reduce(const RaggedGatherReduceArgs& args) {
  const std::int64_t rows = args.x.dim(0), m = args.x.dim(1), tokens = args.position.dim(0),
                     per_token = args.position.dim(1);
  const auto* const position = args.position.device_data<std::int32_t>();
  const float* const weights = args.w.device_data<float>();
  with_float_type(args.x.dtype(), [&]<typename T>(T) {
    with_float_type(args.out.dtype(), [&]<typename Out>(Out) {
      const T* const x = args.x.device_data<T>();
      Out* const out = args.out.device_data<Out>();
      if (m % kWide<T> == 0 && are_wide({x}))
        launch(row_blocks(tokens, m, kWide<T>), gather_reduce<T, Out, kWide<T>>, x, rows, position, weights,
               per_token, out, m);
      else
        launch(row_blocks(tokens, m, 1), gather_reduce<T, Out, 1>, x, rows, position, weights, per_token, out,
               m);
    });
  });
}

void ragged_row_dot(const RaggedRowDotArgs& args) {
  const std::int64_t count = args.position.size(), per_token = args.position.dim(1);
  with_float_type(args.x.dtype(), [&]<typename T>(T) {
    launch({.blocks = divide_up(count, kRaggedRowsThreads / kWarp), .threads = kRaggedRowsThreads},
           row_dot<T>, args.dy.device_data<T>(), args.x.device_data<T>(), args.x.dim(0),
           args.position.device_data<std::int32_t>(), count, per_token, args.dw.device_data<float>(),
           args.x.dim(1));
  });
}

}  // namespace switchyard::gpu
