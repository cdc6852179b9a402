// Measures output projection with cross-entropy, forward and with backward.
#include "bench/cases.h"
#include "bench/random_tensor.h"
#include "core/error.h"
#include "kernels/loss/cross_entropy.h"

namespace switchyard::bench {
namespace {

const std::vector<std::string> kLossDirections{"fwd", "fwd+bwd"};

struct LossCall {
  std::int64_t rows, emb, vocab;
  DType dtype;
  std::string direction;
};

Measurement measure_loss(Bench& bench, const LossCall& call) {
  const bool backward = call.direction == "fwd+bwd";
  const Tensor hidden = random_tensor(bench, call.dtype, {call.rows, call.emb}, 1),
               weight = random_tensor(bench, call.dtype, {call.emb, call.vocab}, 2, 0.05f);
  Tensor targets(DType::i32, {call.rows}), share(DType::f32, {call.rows});
  for (std::int64_t i = 0; i < call.rows; ++i)
    targets.data<std::int32_t>()[i] = static_cast<std::int32_t>(i * 7919 % call.vocab);
  std::fill_n(share.data<float>(), call.rows, 1.0f / static_cast<float>(call.rows));
  targets = to_device(bench.memory, targets);
  share = to_device(bench.memory, share);
  const Tensor lse = bench.memory.empty(DType::f32, {call.rows}),
               target_logit = bench.memory.empty(DType::f32, {call.rows}),
               dhidden = bench.memory.empty(DType::f32, {call.rows, call.emb});
  Tensor dweight;
  if (backward) dweight = bench.memory.empty(call.dtype, {call.emb, call.vocab});
  const CrossEntropyLogits logits{
      .hidden = hidden.view(), .weight = weight.view(), .targets = targets.view()};
  const auto r = static_cast<double>(call.rows), v = static_cast<double>(call.vocab);
  Measurement m;
  m.name = "loss";
  m.shape = {{"rows", call.rows}, {"emb", call.emb}, {"vocab", call.vocab}};
  m.dtype = call.dtype;
  m.threads = bench.pool.threads();
  m.direction = call.direction;
  m.flops = 2 * r * v * static_cast<double>(call.emb) * (backward ? 3 : 1);
  m.bytes = static_cast<double>(hidden.bytes() + weight.bytes() + targets.bytes() + lse.bytes() +
                                target_logit.bytes());
  if (backward) m.bytes += static_cast<double>(dhidden.bytes() + dweight.bytes());
  m.time = time_rounds(bench, [&] {
    if (!backward) return linear_cross_entropy(bench.pool, {logits, lse.view(), target_logit.view()});
    linear_cross_entropy_with_gradients(bench.pool, {.logits = logits,
                                                     .lse = lse.view(),
                                                     .target_logit = target_logit.view(),
                                                     .softmax_coefficient = share.view(),
                                                     .target_coefficient = share.view(),
                                                     .dhidden = dhidden.view(),
                                                     .dweight = dweight.view(),
                                                     .summed = [](std::int64_t, std::int64_t) {}});
  });
  m.more["exponentials_per_s"] = r * v / m.time.seconds;
  return m;
}

}  // namespace

std::vector<Key> loss_keys() {
  return {{"rows", "8192", "tokens; without any of rows, emb, vocab also 2048 x 2048 x 102400"},
          {"emb", "64", "model width"},
          {"vocab", "129280", "vocabulary"},
          {"direction", "all", "fwd, fwd+bwd; or all"},
          {"dtype", "bf16", "bf16 or f32"}};
}

std::vector<Job> loss_jobs(const Keys& keys) {
  const DType dtype = parse_float_dtype(keys.text("dtype"), "dtype");
  const std::int64_t vocab = keys.integer("vocab");
  std::vector<LossCall> shapes{{keys.integer("rows"), keys.integer("emb"), vocab, dtype, ""}};
  if (!keys.any_given({"rows", "emb", "vocab"})) shapes.push_back({2048, 2048, 102400, dtype, ""});
  std::vector<Job> jobs;
  for (LossCall call : shapes) {
    for (const auto& direction : keys.words("direction", kLossDirections)) {
      call.direction = direction;
      const double bytes = static_cast<double>(call.emb) * static_cast<double>(call.rows + call.vocab) *
                           static_cast<double>(size_of(dtype) + (direction == "fwd" ? 0 : 2 * sizeof(float)));
      jobs.push_back({fmt::format("loss {} {} x {} x {}", direction, call.rows, call.emb, call.vocab), bytes,
                      [call](Bench& bench) { return std::vector{measure_loss(bench, call)}; }});
    }
  }
  return jobs;
}

}  // namespace switchyard::bench
