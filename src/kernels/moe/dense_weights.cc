#include "kernels/moe/dense_weights.h"

#include <algorithm>
#include <cstdint>
#include <functional>

#include "core/error.h"
#include "kernels/cuda/kernels.h"

namespace switchyard {
namespace {

constexpr std::int64_t kTokensAtOnce = 1024;

// For pieces of the tokens: start(first token, end), then visit(row of ids, its element of `dense`) for every
// row of the piece. `on_gpu` does it where it is a GPU's.
template <typename Start, typename Visit>
void each_choice(ThreadPool& pool, const char* op, const TensorView& ids, const TensorView& of_slots,
                 const TensorView& dense, const std::function<void()>& on_gpu, const Start& start,
                 const Visit& visit) {
  CHECK(ids.rank() == 2 && ids.dtype() == DType::i32 && ids.is_contiguous() &&
            of_slots.dtype() == DType::f32 && of_slots.shape() == ids.shape() && of_slots.is_contiguous(),
        "[{}] ids {} {}, weights {} {}", op, name_of(ids.dtype()), to_string(ids.shape()),
        name_of(of_slots.dtype()), to_string(of_slots.shape()));
  CHECK(
      dense.rank() == 2 && dense.dtype() == DType::f32 && dense.dim(1) == ids.dim(0) && dense.is_contiguous(),
      "[{}] dense weights {} {} of {} tokens", op, name_of(dense.dtype()), to_string(dense.shape()),
      ids.dim(0));
  if (pool.skips({op, DType::f32, 0, static_cast<double>(2 * ids.bytes() + dense.bytes())})) return;
  const std::int64_t tokens = ids.dim(0), slots = ids.dim(1), experts = dense.dim(0);
  if (ids.on_gpu()) return on_gpu();
  const auto* const expert = ids.kernel_data<std::int32_t>();
  pool.for_range(tokens, kTokensAtOnce, [&](std::int64_t begin, std::int64_t end) {
    start(begin, end);
    for (std::int64_t r = begin * slots; r < end * slots; ++r) {
      CHECK(expert[r] >= -1 && expert[r] < experts, "[{}] expert id {} of {}", op, expert[r], experts);
      if (expert[r] >= 0) visit(r, expert[r] * tokens + r / slots);
    }
  });
}

}  // namespace

void dense_weights(ThreadPool& pool, const DenseWeightsArgs& args) {
  auto* const out = args.out.device_data<float>();
  const auto* const weights = args.weights.device_data<float>();
  const std::int64_t experts = args.out.dim(0), tokens = args.out.dim(1);
  each_choice(
      pool, "dense_weights", args.ids, args.weights, args.out, [&] { gpu::dense_weights(args); },
      [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t e = 0; e < experts; ++e)
          std::fill(out + e * tokens + begin, out + e * tokens + end, 0.0f);
      },
      [=](std::int64_t row, std::int64_t at) { out[at] += weights[row]; });
}

void dense_weights_backward(ThreadPool& pool, const DenseWeightsBackwardArgs& args) {
  const auto* const dout = args.dout.device_data<float>();
  auto* const dweights = args.dweights.device_data<float>();
  each_choice(
      pool, "dense_weights_backward", args.ids, args.dweights, args.dout,
      [&] { gpu::dense_weights_backward(args); },
      [=, slots = args.ids.dim(1)](std::int64_t begin, std::int64_t end) {
        std::fill(dweights + begin * slots, dweights + end * slots, 0.0f);
      },
      [=](std::int64_t row, std::int64_t at) { dweights[row] = dout[at]; });
}

}  // namespace switchyard
