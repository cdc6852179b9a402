// Warnings for tensors that a mesh splits less than the axis rules ask for. Like layers share one line.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/parameters.h"
#include "parallel/axis_rules.h"

namespace switchyard {

// Returns "layers.*.moe.gate" for "layers.2.moe.gate". Other names are returned unchanged.
std::string name_without_layer(const std::string& parameter);

// Lines such as "layers.*.attention.query: dim 'q_heads' of size 4 is not divisible by expert=8; replicated",
// in the order of the parameters. A line that holds for only some layers says for which.
std::vector<std::string> layout_warnings(const AxisRules& rules, std::span<const ParameterSpec> specs);

// Returns one line for all warnings that are equal from "is not divisible by" on: the first of them, with the
// number of the others.
std::vector<std::string> counted_warnings(const std::vector<std::string>& warnings);

}  // namespace switchyard
