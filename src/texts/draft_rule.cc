#include "texts/draft_rule.h"

#include <cmath>

#include "models/parameters.h"

namespace switchyard::texts {

double CallCost::of(double tokens) const {
  return always + experts * (1 - std::pow(1 - chosen, tokens)) + work * tokens;
}

CallCost call_cost(const ModelConfig& model) {
  constexpr double kWork = 0.05;  // of reading what a token multiplies, on the CPUs that were measured
  CallCost cost{.always = 0};
  for (const ParameterSpec& spec : parameter_specs(without_predictions(model))) {
    if (spec.name == "embedding" && !model.tied) continue;  // a row for each token
    (spec.name.find(".moe.w") == std::string::npos ? cost.always : cost.experts) +=
        static_cast<double>(num_elements(spec.shape));
  }
  if (cost.experts > 0)
    cost.chosen = static_cast<double>(model.moe().slots) / static_cast<double>(model.moe().experts);
  cost.work = kWork * cost.of(1);
  return cost;
}

void DraftRate::add(std::int64_t right, bool one_wrong) {
  constexpr double kKept = 0.9;  // of what earlier calls say
  right_ = kKept * right_ + static_cast<double>(right);
  tried_ = kKept * tried_ + static_cast<double>(right + one_wrong);
}

std::int64_t drafts_worth(const CallCost& cost, double right, std::int64_t most, std::int64_t texts) {
  const auto n = static_cast<double>(texts);
  double tokens = 1, share = 1, best = 1 / cost.of(n);
  std::int64_t worth = 0;
  for (std::int64_t drafts = 1; drafts <= most; ++drafts) {
    share *= right;  // that all drafts up to this one are right
    tokens += share;
    const double gives = tokens / cost.of(n * static_cast<double>(1 + drafts));
    if (gives > best) best = gives, worth = drafts;
  }
  return worth;
}

}  // namespace switchyard::texts
