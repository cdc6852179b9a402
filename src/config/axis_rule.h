// One line of logical_axis_rules: the mesh axes that may split a logical dim, in order (major to minor).
#pragma once

#include <string>
#include <vector>

namespace switchyard {

struct AxisRule {
  std::string name;               // logical dim, such as "activation_batch"
  std::vector<std::string> axes;  // mesh axes; empty keeps the dim whole

  friend bool operator==(const AxisRule&, const AxisRule&) = default;
};

}  // namespace switchyard
