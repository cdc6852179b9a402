#include "texts/expert_counts.h"

#include <algorithm>

#include "models/pipeline.h"

namespace switchyard::texts {
namespace {

constexpr std::size_t kMostUnread = 4096;  // layers' counts, of a few hundred bytes to some KB each

}  // namespace

ExpertCounts::ExpertCounts(Context& context, const ModelConfig& model)
    : context_(context),
      layers_(without_predictions(model).moe_layers()),
      experts_(static_cast<std::size_t>(model.moe().experts)),
      assignments_(layers_.size() * experts_) {}

void ExpertCounts::add(std::span<const LayerLoad> loads) {
  unread_.insert(unread_.end(), loads.begin(), loads.end());
  if (unread_.size() >= kMostUnread) read();
}

void ExpertCounts::move_to(Observer* observer) {
  read();
  sum_over_run(context_, assignments_);
  if (observer != nullptr) observer->assigned(assignments_, layers_, experts_);
  std::ranges::fill(assignments_, 0.0);
}

void ExpertCounts::read() {
  read_loads(context_, unread_);
  for (const LayerLoad& load : unread_) {
    const auto at = std::ranges::lower_bound(layers_, load.layer) - layers_.begin();
    double* const of_layer = assignments_.data() + static_cast<std::size_t>(at) * experts_;
    for (std::size_t e = 0; e < experts_; ++e) of_layer[e] += load.rows[e];
  }
  unread_.clear();
}

}  // namespace switchyard::texts
