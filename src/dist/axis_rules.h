// AxisRules: from a tensor's logical dim names to its sharding, by the ordered rules of `logical_axis_rules`.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "config/axis_rule.h"
#include "dist/mesh.h"
#include "dist/sharding.h"

namespace switchyard {

class AxisRules {
 public:
  AxisRules(std::vector<AxisRule> rules, const Mesh& mesh);

  struct Resolution {
    Sharding sharding;
    std::vector<std::string>
        matched_rules;  // per dim "name -> axis+axis" as the rule is written; "" without a rule
    std::vector<std::string> warnings;  // one line per dim that lost axes because they do not divide it
  };

  // Resolves the logical names of a tensor's dims ("" = no name) for its global shape, same length.
  //
  // The rules are walked in order. A rule assigns its axes to the first still unassigned dim of its name,
  // unless another dim of this tensor uses one of them; axes count by name here, also those of size 1 or
  // outside the mesh. Then axes of size 1 and outside the mesh are dropped, and of the rest the longest
  // prefix whose product divides the dim stays. Experts ("exp", "activation_exp") must divide: Error(usage)
  // naming num_experts, the axes and the nearest legal value.
  Resolution resolve(std::span<const std::string> dims, const Shape& shape) const;

  // From now on `observer` is told of every resolution. Only where one thread uses the rules.
  using Observer =
      std::function<void(std::span<const std::string> dims, const Shape& shape, const Resolution&)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

 private:
  std::vector<AxisRule> rules_;
  Mesh mesh_;
  Observer observer_;
};

}  // namespace switchyard
