// Explain: how every parameter and every constrained activation of a step is laid out, by which rule, and
// what is communicated for it.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "parallel/axis_rules.h"

namespace switchyard {

struct LayoutRow {
  std::string name;         // of a parameter; of an activation its checkpoint name, or the op that made it
  std::int64_t layer = -1;  // of an activation; -1 outside of the layers
  std::vector<std::string> dims;  // logical names, "" without one
  Shape shape, local;
  std::vector<std::string> rules;  // per dim the rule that matched, "" for none
  std::vector<std::string>
      reasons;  // per dim why it is split as it is, or not: "no rule", "by exp -> expert", ...
  Sharding sharding;
  std::vector<std::string> collectives;  // "forward: all_gather over fsdp", in order, each once
};

struct Explanation {
  std::vector<LayoutRow> parameters;
  std::vector<LayoutRow> activations;  // in the order of the step
  std::vector<std::string> warnings;   // models/layout_warnings.h
};

// From one step of rank 0 in an abstract context. Error(usage) for what a run would refuse.
Explanation explain_step(const Config& config, const Mesh& mesh);

}  // namespace switchyard
