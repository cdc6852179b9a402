#include "autograd/remat.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <unordered_set>

#include "autograd/node.h"
#include "autograd/offload.h"

namespace switchyard {

RematRegion::RematRegion(Context& context, const RematPolicy& policy)
    : context_(context), policy_(policy), outer_(context.region), exceptions_(std::uncaught_exceptions()) {
  if (policy.enabled) context.region = this;
}

RematRegion::~RematRegion() noexcept(false) {
  if (!policy_.enabled) return;
  context_.region = outer_;
  if (std::uncaught_exceptions() > exceptions_) return;  // the error discards the region's values
  drop();
  if (outer_ != nullptr) std::ranges::move(nodes_, std::back_inserter(outer_->nodes_));
}

void RematRegion::drop() {
  std::unordered_set<const Node*> inside;
  for (const auto& node : nodes_) inside.insert(node.get());
  auto droppable = [&](const Value& value) {
    return inside.count(value.producer.get()) != 0 && !value.always_keep &&
           policy_.kept.count(value.checkpoint_name) == 0;
  };
  // Kept values must be held even if no backward rule reads them: a recomputation may read them.
  auto hold = [](const Value& value, Tensor& slot) {
    if (slot.defined() || value.never_save) return;
    if (auto buffer = value.buffer.lock())
      slot = Tensor(value.info.dtype, value.info.local, buffer, value.offset_bytes);
  };
  if (context_.offload) context_.offload->let_go();  // of the previous region's values
  const auto group = std::make_shared<OffloadGroup>();
  // Moves a value to the host if the policy offloads it. Returns whether the host has the value.
  auto moved_away = [&](const ValuePtr& value) {
    if (value->offloaded) return true;
    if (!context_.offload || policy_.offloaded.count(value->checkpoint_name) == 0) return false;
    if (value->always_keep || value->never_save || value->buffer.expired()) return false;
    if (num_elements(value->info.local) == 0) return false;
    offload(context_, value, group);
    return true;
  };
  for (const auto& node : nodes_) {
    for (std::size_t i = 0; i < node->inputs.size(); ++i) {
      if (droppable(*node->inputs[i]) || moved_away(node->inputs[i]))
        node->saved_inputs[i] = Tensor();
      else
        hold(*node->inputs[i], node->saved_inputs[i]);
    }
    // A node with a kept output keeps all that its backward reads. Without its statistics (lse, rstd) the
    // node would have to run again; without the ids of kept routing weights, whose Value may be gone, the
    // node would choose experts again.
    bool keep = false;
    for (std::size_t i = 0; i < node->outputs.size(); ++i) {
      auto value = node->outputs[i].lock();
      if (!value || droppable(*value)) continue;
      keep = true;
      if (node->saved_outputs[i].defined() && moved_away(value)) node->saved_outputs[i] = Tensor();
    }
    if (!keep) std::fill(node->saved_outputs.begin(), node->saved_outputs.end(), Tensor());
  }
  if (group->values.empty()) return;
  group->before = context_.last_offloads;
  context_.last_offloads = group;
}

}  // namespace switchyard
