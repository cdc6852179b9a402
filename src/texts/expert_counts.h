// ExpertCounts: the experts' assignments that the calls of a loop count.
#pragma once

#include <span>
#include <vector>

#include "autograd/context.h"
#include "models/architecture.h"
#include "moe/balance.h"
#include "texts/observer.h"

namespace switchyard::texts {

// This rank's share of the assignments, layer after layer, since they were last summed. The counts stay on
// the device until then: to read them at every token would make the host wait for a GPU.
class ExpertCounts {
 public:
  // The context must outlive the object.
  ExpertCounts(Context& context, const ModelConfig& model);

  void add(std::span<const LayerLoad> loads);
  // Tells the sums over all ranks to an observer, where that is not null, and begins anew. Collective.
  void move_to(Observer* observer);

 private:
  void read();

  Context& context_;
  std::vector<LayerLoad> unread_;
  std::vector<std::int64_t> layers_;  // those with experts
  std::size_t experts_;
  std::vector<double> assignments_;
};

}  // namespace switchyard::texts
