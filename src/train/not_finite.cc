// Finds where a bad step first had a value that is not finite, from the weights on to the gradients.
#include <cmath>
#include <utility>

#include "models/finite.h"
#include "models/pipeline.h"
#include "train/trainer.h"

namespace switchyard {
namespace {

// Counts of values that are not finite, at the places of a step's work, in the order of the work.
class Places {
 public:
  explicit Places(const ModelConfig& model)
      : layers_(static_cast<std::size_t>(model.depth())), counts_(3 * layers_ + 5, 0.0) {}

  std::vector<double>& counts() { return counts_; }
  double& weights() { return counts_[0]; }
  double& embedding() { return counts_[1]; }
  double& layer(std::int64_t i) { return counts_[2 + index(i)]; }
  double& balance(std::int64_t i) { return counts_[2 + layers_ + index(i)]; }
  double& logits() { return counts_[2 + 2 * layers_]; }
  // The gradients' counts follow backward's order: from the head to the embedding.
  double& gradient(const std::string& parameter) {
    const std::int64_t number = layer_of(parameter);
    const std::size_t head = 3 + 2 * layers_;
    if (number >= 0) return counts_[head + layers_ - index(number)];
    return counts_[parameter == "embedding" ? head + layers_ + 1 : head];
  }

  // Returns the name of the first place with a count; "" without one.
  std::string first() {
    if (weights() > 0) return "the weights";
    if (embedding() > 0) return "the output of the embedding";
    for (std::int64_t i = 0; std::cmp_less(i, layers_); ++i) {
      if (layer(i) > 0) return fmt::format("the output of layer {}", i);
      if (balance(i) > 0) return fmt::format("the balance loss of layer {}", i);
    }
    if (logits() > 0) return "the logits and their loss";
    const std::size_t head = 3 + 2 * layers_;
    if (counts_[head] > 0) return "the gradients of the head and the final norm";
    for (std::size_t i = 1; i <= layers_; ++i) {
      if (counts_[head + i] > 0) return fmt::format("the gradients of layer {}", layers_ - i);
    }
    return counts_[head + layers_ + 1] > 0 ? "the gradients of the embedding" : "";
  }

 private:
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
  std::size_t layers_;
  std::vector<double> counts_;
};

}  // namespace

void Trainer::say_origin(const BatchRows& batch, const Tensor& squares, StepResult& result) {
  const bool finite = std::isfinite(result.loss) && std::isfinite(result.raw_grad_norm);
  if (finite || result.bad.empty() || bad_steps_.state().in_a_row != 1 || context_.abstract()) return;
  Places places(model_);
  places.weights() = std::isfinite(result.param_norm) ? 0 : 1;
  for (const Parameter* const parameter : updater_.not_finite(squares))
    places.gradient(parameter->spec.name) += 1;
  LossOptions options;
  options.keep_hidden = true;
  const OwnBatch own = read_own(batch, config_.accumulation * config_.stage_microbatches);
  options.target_count = divisor(own.targets);
  for (std::size_t i = 0; i < own.micro.size(); ++i)
    forward_only(
        model_, own, options,
        [&](const Losses& out, const Stage::Block& block) {
          std::int64_t layer = layers_of(block, model_.layers).begin - (block.is_first() ? 1 : 0);
          for (const Array& hidden : out.hidden) {
            (layer < 0 ? places.embedding() : places.layer(layer)) += count_not_finite(context_, hidden);
            ++layer;
          }
          for (std::size_t l = 0; l < out.layer_balance.size(); ++l) {
            if (out.layer_balance[l].defined())
              places.balance(out.loads[l].layer) += count_not_finite(context_, out.layer_balance[l]);
          }
          if (out.lm_loss.defined()) places.logits() += count_not_finite(context_, out.lm_loss);
        },
        i);
  sum_over_run(context_, places.counts());
  if (const std::string origin = places.first(); !origin.empty())
    result.bad += "; not finite first: " + origin;
}

}  // namespace switchyard
