#include "kernels/moe/dense_weights.h"

#include <algorithm>
#include <cstdint>

#include "kernels/moe/kernels.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

// For pieces of the tokens: start(first token, end), then visit(place in ids, its element of [experts,
// tokens]) for each choice of the piece.
template <typename Start, typename Visit>
void each_choice(ThreadPool& pool, const char* op, const TensorView& ids, std::int64_t experts,
                 const Start& start, const Visit& visit) {
  constexpr std::int64_t kTokensAtOnce = 1024;
  const std::int64_t tokens = ids.dim(0), per_token = ids.dim(1);
  const auto* const expert = ids.kernel_data<std::int32_t>();
  pool.for_range(tokens, kTokensAtOnce, [&](std::int64_t begin, std::int64_t end) {
    start(begin, end);
    for (std::int64_t i = begin * per_token; i < end * per_token; ++i) {
      CHECK(expert[i] >= -1 && expert[i] < experts, "[{}] expert id {} of {}", op, expert[i], experts);
      if (expert[i] >= 0) visit(i, expert[i] * tokens + i / per_token);
    }
  });
}

void spread_weights(ThreadPool& pool, const DenseWeightsArgs& args) {
  auto* const out = args.out.kernel_data<float>();
  const auto* const weights = args.weights.kernel_data<float>();
  const std::int64_t experts = args.out.dim(0), tokens = args.out.dim(1);
  each_choice(
      pool, "dense_weights", args.ids, experts,
      [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t e = 0; e < experts; ++e)
          std::fill(out + e * tokens + begin, out + e * tokens + end, 0.0f);
      },
      [=](std::int64_t i, std::int64_t at) { out[at] += weights[i]; });
}

void collect_gradients(ThreadPool& pool, const DenseWeightsBackwardArgs& args) {
  const auto* const dout = args.dout.kernel_data<float>();
  auto* const dweights = args.dweights.kernel_data<float>();
  each_choice(
      pool, "dense_weights_backward", args.ids, args.dout.dim(0),
      [=, per_token = args.ids.dim(1)](std::int64_t begin, std::int64_t end) {
        std::fill(dweights + begin * per_token, dweights + end * per_token, 0.0f);
      },
      [=](std::int64_t i, std::int64_t at) { dweights[i] = dout[at]; });
}

Work work_of(const TensorView& ids, const TensorView& dense) {
  return {.bytes = static_cast<double>(2 * ids.bytes() + dense.bytes())};
}

Work forward_work(const DenseWeightsArgs& args) {
  return work_of(args.ids, args.out);
}

Work backward_work(const DenseWeightsBackwardArgs& args) {
  return work_of(args.ids, args.dout);
}

constexpr Implementation<DenseWeightsArgs> kDenseWeightsForwards[] = {{"cuda", Gpu::any, gpu::dense_weights},
                                                                      {"portable", Isa::ref, spread_weights}};
constexpr Implementation<DenseWeightsBackwardArgs> kDenseWeightsBackwards[] = {
    {"cuda", Gpu::any, gpu::dense_weights_backward}, {"portable", Isa::ref, collect_gradients}};
constexpr Kernel<DenseWeightsArgs> kDenseWeights{"dense_weights", forward_work, &DenseWeightsArgs::ids,
                                                 kDenseWeightsForwards};
constexpr Kernel<DenseWeightsBackwardArgs> kDenseWeightsBackward{
    "dense_weights_backward", backward_work, &DenseWeightsBackwardArgs::ids, kDenseWeightsBackwards};

void check_weights(const char* op, const TensorView& ids, const TensorView& weights,
                   const TensorView& dense) {
  CHECK(ids.rank() == 2 && dense.rank() == 2, "[{}] ids {}, dense weights {}", op, to_string(ids.shape()),
        to_string(dense.shape()));
  check_operand(op, "ids", ids, DType::i32, ids.shape());
  check_operand(op, "weights", weights, DType::f32, ids.shape());
  check_operand(op, "dense weights", dense, DType::f32, {dense.dim(0), ids.dim(0)});
}

}  // namespace

void dense_weights(ThreadPool& pool, const DenseWeightsArgs& args) {
  check_weights("dense_weights", args.ids, args.weights, args.out);
  run(pool, kDenseWeights, args);
}

void dense_weights_backward(ThreadPool& pool, const DenseWeightsBackwardArgs& args) {
  check_weights("dense_weights_backward", args.ids, args.dweights, args.dout);
  run(pool, kDenseWeightsBackward, args);
}

}  // namespace switchyard
