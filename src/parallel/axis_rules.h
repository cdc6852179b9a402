// AxisRules: from a tensor's logical dim names to its sharding, by the ordered rules of `logical_axis_rules`.
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
    // Per dim "name -> axis+axis" as the rule is written, "" without a rule; kept by the AxisRules.
    InlineVector<std::string_view, kMostDims> matched_rules;
    std::vector<std::string> warnings;  // one line per dim that lost axes because they do not divide it
  };

  // Resolves the names of a tensor's dims for its global shape, same length.
  //
  // The rules are walked in order. A rule assigns its axes to the first still unassigned dim of its name,
  // unless another dim of this tensor uses one of them; axes count by name here, also those of size 1 or
  // outside the mesh. Then axes of size 1 and outside the mesh are dropped, and of the rest the longest
  // prefix whose product divides the dim stays. Experts ("exp", "activation_exp") must divide: Error(usage)
  // naming num_experts, the axes and the nearest legal value.
  Resolution resolve(DimNames dims, const Shape& shape) const;
  Resolution resolve(std::span<const std::string> dims, const Shape& shape) const;
  Sharding sharding(std::initializer_list<std::string_view> dims, const Shape& shape) const {
    return resolve(DimNames(dims.begin(), dims.size()), shape).sharding;
  }

  // From now on `observer` is told of every resolution. Only where one thread uses the rules.
  using Observer = std::function<void(DimNames dims, const Shape& shape, const Resolution&)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

 private:
  struct Rule {
    std::string name;
    std::size_t hash;        // of the name
    std::vector<Axis> axes;  // all of them
    Axes larger;             // those of the mesh that are larger than 1
    std::string text;
  };
  std::vector<Rule> rules_;
  Mesh mesh_;
  Observer observer_;
};

}  // namespace switchyard
