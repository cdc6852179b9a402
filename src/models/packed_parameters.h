// Parameters in blocks of a few bits (kernels/packed/packed_block.h): which there are, and their shapes.
//
// A packed parameter has the dims of the dense one, in the same order and under the same axis rules: its last
// input dim counts blocks of block_inputs() and its last dim blocks of 16. So shards and gathers move whole
// blocks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/box.h"
#include "models/parameters.h"
#include "parallel/axis_rules.h"

namespace switchyard {

// The same parameters with those packed that the format is for: experts, linear layers and the head (which
// has 8 bits at least). Router, norms, biases, the embedding and MLA's wkv_b stay: they are small, or read in
// ways that have no products of blocks. So does a matrix that is no whole number of blocks, which a note
// names. Error(usage) where none can be packed.
std::vector<ParameterSpec> packed_specs(std::vector<ParameterSpec> specs, DType packed,
                                        std::vector<std::string>* notes);
// The same of frozen parameters alone, for a run that trains all others.
std::vector<ParameterSpec> packed_frozen_specs(std::vector<ParameterSpec> specs, DType packed,
                                               std::vector<std::string>* notes);

// Error(usage) where one of them is packed and not frozen: training cannot change packed weights.
void require_packed_frozen(const std::vector<ParameterSpec>& specs);

// One of them in `packed`; nothing for one that stays, or is no whole number of blocks.
std::optional<ParameterSpec> packed_spec(const ParameterSpec& dense, DType packed);

// Whether a mesh splits a packed parameter as it would the dense one, so that operands meet; else it would
// cut blocks.
bool splits_whole_blocks(const AxisRules& rules, const ParameterSpec& packed);

// The dense weight that a packed parameter is made from, in `dtype`, and a block of it.
ParameterSpec dense_spec(const ParameterSpec& packed, DType dtype);
Box dense_box(const ParameterSpec& packed, const Box& box);

}  // namespace switchyard
