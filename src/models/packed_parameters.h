// Parameters in blocks of a few bits (kernels/packed/packed_block.h): which are packed, and their shapes.
//
// A packed parameter has the dims of the dense one, in the same order and under
// the same axis rules. Its last input dim counts blocks of block_inputs() and
// its last dim counts blocks of 16. So sharding and gathering move whole blocks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/box.h"
#include "models/parameters.h"
#include "parallel/axis_rules.h"

namespace switchyard {

// Packs experts, linear layers and the head (the head with at least 8 bits). Router,
// norms, biases, the embedding and MLA's wkv_b stay dense: they are small, or are
// read by ops without a packed kernel. A matrix that is no whole number of blocks
// stays dense too, and a note names it. Error(usage) when none can be packed.
std::vector<ParameterSpec> packed_specs(std::vector<ParameterSpec> specs, DType packed,
                                        std::vector<std::string>* notes);
// Packs frozen parameters only, for a run that trains all others.
std::vector<ParameterSpec> packed_frozen_specs(std::vector<ParameterSpec> specs, DType packed,
                                               std::vector<std::string>* notes);

// Error(usage) when a packed parameter is not frozen: training cannot change packed weights.
void require_packed_frozen(const std::vector<ParameterSpec>& specs);

// The packed form of a parameter; nothing when it stays dense or is no whole number of blocks.
std::optional<ParameterSpec> packed_spec(const ParameterSpec& dense, DType packed);

// True when a mesh splits a packed parameter as it would the dense
// one, so that operands match. False when it would cut blocks.
bool splits_whole_blocks(const AxisRules& rules, const ParameterSpec& packed);

// The dense weight that a packed parameter is made from, in `dtype`, and a block of that weight.
ParameterSpec dense_spec(const ParameterSpec& packed, DType dtype);
Box dense_box(const ParameterSpec& packed, const Box& box);

}  // namespace switchyard
