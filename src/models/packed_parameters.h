// Parameters in blocks of a few bits (kernels/packed_block.h): which there are, and their shapes.
//
// A packed parameter has the dims of the dense one, in the same order and under the same axis rules: its last
// input dim counts blocks of 32 and its last dim blocks of 16. So shards and gathers move whole blocks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/box.h"
#include "dist/axis_rules.h"
#include "models/parameters.h"

namespace switchyard {

// parameter_specs(model) in the bits that the key weight_format names.
std::vector<ParameterSpec> specs_to_run(const Config& config, const ModelConfig& model,
                                        std::vector<std::string>* notes);

// The same parameters with those packed that the format is for: experts, linear layers and the head (which
// has 8 bits at least). Router, norms, biases, the embedding and MLA's wkv_b stay: they are small, or read in
// ways that have no products of blocks. So does a matrix that is no whole number of blocks, which a note
// names. Error(usage) where none can be packed.
std::vector<ParameterSpec> packed_specs(std::vector<ParameterSpec> specs, DType packed,
                                        std::vector<std::string>* notes);

// A parameter in blocks of `packed`; none for one that is not packed, or is no whole number of blocks.
std::optional<ParameterSpec> packed_spec(const ParameterSpec& dense, DType packed);

// Whether a mesh splits a packed parameter as it would the dense one, so that operands meet; else it would
// cut blocks.
bool splits_whole_blocks(const AxisRules& rules, const ParameterSpec& packed);

// The dense weight that a packed parameter is made from, in `dtype`, and a block of it.
ParameterSpec dense_spec(const ParameterSpec& packed, DType dtype);
Box dense_box(const ParameterSpec& packed, const Box& box);

}  // namespace switchyard
