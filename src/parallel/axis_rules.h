// AxisRules: maps a tensor's logical dim names to its sharding, by the ordered `logical_axis_rules`.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/axis_rule.h"
#include "parallel/mesh.h"
#include "parallel/sharding.h"

namespace switchyard {

// The logical names of a tensor's dims, "" for no name.
using DimNames = std::span<const std::string_view>;

class AxisRules {
 public:
  AxisRules(const std::vector<AxisRule>& rules, const Mesh& mesh);

  struct Resolution {
    Sharding sharding;
    // Per dim the matched rule, "name -> axis+axis", "" without a rule; owned by the AxisRules.
    InlineVector<std::string_view, kMostDims> matched_rules;
    std::vector<std::string> warnings;  // one line per dim that lost axes which do not divide it
  };

  // Returns the sharding for a tensor's dim names and its global shape, which have the same length.
  //
  // The rules are applied in order. A rule assigns its axes to the first still unassigned dim of its name,
  // unless another dim of this tensor uses one of them; axes count by name here, even those of size 1 or
  // outside the mesh. Then axes of size 1 and axes outside the mesh are dropped, and of the rest the longest
  // prefix whose product divides the dim stays. Experts ("exp", "activation_exp") must divide: Error(usage)
  // names num_experts, the axes and the nearest legal value.
  Resolution resolve(DimNames dims, const Shape& shape) const;
  Resolution resolve(std::span<const std::string> dims, const Shape& shape) const;
  Sharding sharding(std::initializer_list<std::string_view> dims, const Shape& shape) const {
    return resolve(DimNames(dims.begin(), dims.size()), shape).sharding;
  }

  // From now on, calls `observer` with every resolution. Only when one thread uses the rules.
  using Observer = std::function<void(DimNames dims, const Shape& shape, const Resolution&)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

 private:
  struct Rule {
    std::string name;
    std::size_t hash;        // of the name
    std::vector<Axis> axes;  // all axes of the rule
    Axes larger;             // the mesh axes among them that are larger than 1
    std::string text;
  };
  std::vector<Rule> rules_;
  Mesh mesh_;
  Observer observer_;
};

}  // namespace switchyard
