// Rematerialisation: a region's values are dropped when the region ends
// and recomputed when backward asks for them.
//
// These are kept: values that enter the region from outside, values marked always_keep (routing decisions, so
// that remat cannot flip a near-tie), and values whose checkpoint name the policy keeps, some of them in
// memory of the host (autograd/offload.h).
//
// Regions may nest: an inner region drops its values when it ends, not when the outer one ends. The outer
// region drops what the inner one kept, unless the outer policy keeps it.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "autograd/context.h"

namespace switchyard {

struct Node;

struct RematPolicy {
  bool enabled = false;        // false: nothing is ever dropped
  std::set<std::string> kept;  // checkpoint names that are kept
  // Names, among the kept values and those that enter from outside, that are offloaded to memory of the host,
  // if the context has such memory (Context::offload).
  std::set<std::string> offloaded = {};
};

class RematRegion {
 public:
  RematRegion(Context& context, const RematPolicy& policy);
  // Drops what the policy does not keep. Values that go to the host may fail to: errors are the device's.
  ~RematRegion() noexcept(false);
  RematRegion(const RematRegion&) = delete;
  RematRegion& operator=(const RematRegion&) = delete;
  void add(std::shared_ptr<Node> node) { nodes_.push_back(std::move(node)); }

 private:
  void drop();
  Context& context_;
  const RematPolicy& policy_;
  RematRegion* const outer_;
  const int exceptions_;  // uncaught ones when the region began
  std::vector<std::shared_ptr<Node>> nodes_;
};

}  // namespace switchyard
