#include "ops/preference_loss.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include "ops/reshard.h"

namespace switchyard {
namespace {

double sigmoid_of(double x) {
  return 1 / (1 + std::exp(-x));
}

double log_sigmoid(double x) {
  return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x)));
}

// One answer of a pair.
struct PairSide {
  double sum = 0, reference = 0;    // of its log-probabilities
  std::vector<std::size_t> places;  // of its targets in the batch
  double count() const { return static_cast<double>(places.size()); }
  double mean() const { return sum / count(); }
};
struct PairOfRow {
  PairSide chosen, rejected;
};

// The pairs with targets on both sides, in the order of rows and segments.
std::vector<PairOfRow> pairs_in(const Tensor& segments) {
  const auto all = segments.span<std::int32_t>();
  const auto length = static_cast<std::size_t>(segments.dim(1));
  std::vector<PairOfRow> pairs;
  for (std::size_t row = 0; row < all.size(); row += length) {
    std::map<std::int32_t, PairOfRow> of_row;
    for (std::size_t i = row; i < row + length; ++i) {
      if (all[i] == 0) continue;
      PairOfRow& pair = of_row[(all[i] - 1) / 2];
      (all[i] % 2 == 1 ? pair.chosen : pair.rejected).places.push_back(i);
    }
    for (auto& [number, pair] : of_row)
      if (!pair.chosen.places.empty() && !pair.rejected.places.empty()) pairs.push_back(std::move(pair));
  }
  return pairs;
}

void sum_side(PairSide& side, std::span<const float> log_probs, std::span<const float> reference) {
  for (const std::size_t i : side.places) {
    side.sum += static_cast<double>(log_probs[i]);
    if (!reference.empty()) side.reference += static_cast<double>(reference[i]);
  }
}

// A pair's part of the loss, and of the gradient of each log-probability of a side.
struct PairLoss {
  double loss, chosen_gradient, rejected_gradient, chosen_reward, rejected_reward;
};

PairLoss dpo_of(const PairOfRow& pair, const PreferenceOptions& o) {
  const double chosen = o.beta * (pair.chosen.sum - pair.chosen.reference),
               rejected = o.beta * (pair.rejected.sum - pair.rejected.reference), d = chosen - rejected;
  const double loss = -(1 - o.label_smoothing) * log_sigmoid(d) - o.label_smoothing * log_sigmoid(-d),
               slope = -(1 - o.label_smoothing) * sigmoid_of(-d) + o.label_smoothing * sigmoid_of(d);
  const double gradient = o.beta * slope / o.pairs;
  return {loss / o.pairs, gradient, -gradient, chosen, rejected};
}

PairLoss orpo_of(const PairOfRow& pair, const PreferenceOptions& o) {
  const double c = pair.chosen.mean(), r = pair.rejected.mean();
  // 1 − e^x without the loss of digits near x = 0.
  const double odds = c - r - std::log(-std::expm1(c)) + std::log(-std::expm1(r)),
               slope = -o.odds_factor * sigmoid_of(-odds) / o.pairs;
  return {-o.odds_factor * log_sigmoid(odds) / o.pairs - pair.chosen.sum / o.chosen_targets,
          slope / -std::expm1(c) / pair.chosen.count() - 1 / o.chosen_targets,
          -slope / -std::expm1(r) / pair.rejected.count(), o.odds_factor * c, o.odds_factor * r};
}

Tensor on_host(Context& c, const Tensor& x) {
  return read_back(c, x, "preferences", [] { return Tensor(); });
}

// It runs on the host, for whole batches of a number a token: a GPU waits for it.
class PreferenceOp : public Op {
 public:
  explicit PreferenceOp(PreferenceOptions options) : options_(options) {}
  std::string_view name() const override { return "preference_loss"; }

  // Inputs: log-probabilities, target segments and, for DPO, the reference's log-probabilities. Outputs: the
  // four numbers of Preference, and the gradient of the log-probabilities for backward.
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    const ArrayInfo scalar;
    return {scalar, scalar, scalar, scalar, in[0]};
  }

  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    std::vector<Tensor> out;
    for (int i = 0; i < 4; ++i) out.push_back(c.zeros(DType::f32, {}));
    out.push_back(c.zeros(DType::f32, in[0].shape()));
    if (c.abstract()) return out;
    const Tensor log_probs = on_host(c, in[0]), segments = on_host(c, in[1]),
                 reference = in.size() > 2 ? on_host(c, in[2]) : Tensor(),
                 gradient = Memory().zeros(DType::f32, in[0].shape());
    double sums[4] = {0, 0, 0, 0};
    for (PairOfRow& pair : pairs_in(segments)) {
      for (PairSide* const side : {&pair.chosen, &pair.rejected})
        sum_side(
            *side, log_probs.span<float>(),
            reference.defined() ? std::span<const float>(reference.span<float>()) : std::span<const float>());
      const PairLoss of =
          options_.kind == PreferenceKind::dpo ? dpo_of(pair, options_) : orpo_of(pair, options_);
      sums[0] += of.loss;
      sums[1] += of.chosen_reward / options_.pairs;
      sums[2] += of.rejected_reward / options_.pairs;
      sums[3] += (of.chosen_reward > of.rejected_reward ? 1 : 0) / options_.pairs;
      put(gradient, pair.chosen, of.chosen_gradient);
      put(gradient, pair.rejected, of.rejected_gradient);
    }
    for (std::size_t i = 0; i < 4; ++i) put_number(out[i], sums[i]);
    copy(gradient.view(), out[4].view());
    return out;
  }

  // Each rank's gradient of the loss is its part of a sum, and so is what it returns.
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor out = c.zeros(DType::f32, call.output(4).shape());
    std::vector<Tensor> gradients(call.inputs());
    gradients[0] = out;
    if (c.abstract() || !call.grad(0).defined()) return gradients;
    const Tensor by_token = on_host(c, call.output(4)).clone();
    const float factor = on_host(c, call.grad(0)).data<float>()[0];
    for (float& g : by_token.span<float>()) g *= factor;
    copy(by_token.view(), out.view());
    return gradients;
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }
  std::uint32_t needs_outputs() const override { return 16; }

 private:
  static void put(const Tensor& gradient, const PairSide& side, double value) {
    for (const std::size_t i : side.places) gradient.span<float>()[i] = static_cast<float>(value);
  }
  static void put_number(const Tensor& there, double value) {
    const Tensor here = Memory().zeros(DType::f32, {});
    here.data<float>()[0] = static_cast<float>(value);
    copy(here.view(), there.view());
  }

  PreferenceOptions options_;
};

}  // namespace

PairCounts count_pairs(const Tensor& target_segments) {
  PairCounts counts;
  for (const PairOfRow& pair : pairs_in(target_segments)) {
    counts.pairs += 1;
    counts.chosen_targets += pair.chosen.count();
  }
  return counts;
}

Preference preference_loss(Context& context, const Array& log_probs, const Array& reference,
                           const Array& target_segments, const PreferenceOptions& options) {
  const Sharding whole{{{}, {}}, {}};
  std::vector<Array> inputs{reshard(context, log_probs, whole), reshard(context, target_segments, whole)};
  if (options.kind == PreferenceKind::dpo) {
    CHECK(reference.defined(), "dpo without a reference");
    inputs.push_back(reshard(context, reference, whole));
  }
  const auto out = apply(context, std::make_shared<PreferenceOp>(options), inputs);
  return {out[0], out[1], out[2], out[3]};
}

}  // namespace switchyard
