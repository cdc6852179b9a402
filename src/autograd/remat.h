// Rematerialisation: values of a region are dropped when the region ends and made again when backward asks
// for them.
//
// Kept are: what enters the region from outside, values marked always_keep (routing decisions, so that remat
// cannot flip a near-tie), and values whose checkpoint name the policy keeps, some of them in memory of the
// host (autograd/offload.h).
//
// A region may have regions inside: what such an inner one drops is gone when it ends, not when the outer one
// does, and of what it leaves the outer one drops what its policy does not keep.
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
  std::set<std::string> kept;  // checkpoint names that stay
  // Of those that stay and of what enters from outside: names that wait in memory of the host, where the
  // context has some for that (Context::offload).
  std::set<std::string> offloaded = {};
};

class RematRegion {
 public:
  RematRegion(Context& context, const RematPolicy& policy);
  ~RematRegion();  // drops what the policy does not keep
  RematRegion(const RematRegion&) = delete;
  RematRegion& operator=(const RematRegion&) = delete;
  void add(std::shared_ptr<Node> node) { nodes_.push_back(std::move(node)); }

 private:
  void drop();
  Context& context_;
  const RematPolicy& policy_;
  RematRegion* const outer_;
  std::vector<std::shared_ptr<Node>> nodes_;
};

}  // namespace switchyard
