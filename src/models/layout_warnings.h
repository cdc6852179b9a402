// Lines for tensors that a mesh splits less than its rules ask for. Layers that are alike share a line.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/parameters.h"
#include "parallel/axis_rules.h"

namespace switchyard {

// "layers.*.moe.gate" for "layers.2.moe.gate"; a name outside the layers is itself.
std::string name_without_layer(const std::string& parameter);

// "layers.*.attention.query: dim 'q_heads' of size 4 is not divisible by expert=8; replicated", in the order
// of the parameters. A line that holds for some of a tensor's layers only says for which.
std::vector<std::string> layout_warnings(const AxisRules& rules, std::span<const ParameterSpec> specs);

}  // namespace switchyard
