// One rule of `logical_axis_rules`: a logical dim name and the mesh axes it may be split over.
#pragma once

#include <string>
#include <vector>

namespace switchyard {

struct AxisRule {
  std::string name;
  std::vector<std::string> axes;  // major to minor; empty: the dim stays whole
};

}  // namespace switchyard
