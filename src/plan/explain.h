// Explain: the layout of every parameter and every constrained activation of a step, the rule behind it, and
// the communication that it causes.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "parallel/axis_rules.h"

namespace switchyard {

struct LayoutRow {
  std::string name;               // a parameter's name; an activation's checkpoint name or op
  std::int64_t layer = -1;        // an activation's layer; -1 outside the layers
  std::vector<std::string> dims;  // logical names; "" for a dim without one
  Shape shape, local;
  std::vector<std::string> rules;  // for each dim the matching rule; "" for none
  std::vector<std::string>
      reasons;  // for each dim why it is split as it is, or not: "no rule", "by exp -> expert", ...
  Sharding sharding;
  std::vector<std::string> collectives;  // in order, each once, such as "forward: all_gather over fsdp"
};

struct Explanation {
  std::vector<LayoutRow> parameters;
  std::vector<LayoutRow> activations;  // in the order of the step
  std::vector<std::string> warnings;   // models/layout_warnings.h
};

// Explains one step of rank 0, run in an abstract context. Error(usage) for anything that a run would refuse.
Explanation explain_step(const Config& config, const Mesh& mesh);

}  // namespace switchyard
