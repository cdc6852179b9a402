#include "models/packed_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "core/error.h"
#include "models/layout_warnings.h"

namespace switchyard {
namespace {

// Dims of the shape that count blocks: the last input dim and the last output dim.
std::size_t input_dim(const ParameterSpec& spec) {
  return spec.matrix.stack + spec.matrix.inputs - 1;
}

Shape scaled(const ParameterSpec& packed, const Shape& blocks) {
  Shape shape = blocks;
  shape[input_dim(packed)] *= block_inputs(packed.dtype);
  shape.back() *= kBlockOutputs;
  return shape;
}

bool may_be_packed(const ParameterSpec& spec) {
  if (spec.of_adapter) return false;
  if (spec.name == "head") return true;
  // The router, numbers that decide alone, and what latent attention takes apart stay as they are.
  for (const char* dense : {"moe.gate", "delta.strength", "delta.decay", ".wkv_b"}) {
    if (spec.name.ends_with(dense)) return false;
  }
  return spec.matrix.inputs > 0 && spec.name.find(".indexer.") == std::string::npos;
}

ParameterSpec as_matrix(ParameterSpec spec) {  // of what may be packed
  if (spec.name == "head") spec.matrix = {0, 1};
  return spec;
}

}  // namespace

std::optional<ParameterSpec> packed_spec(const ParameterSpec& dense, DType packed) {
  if (!may_be_packed(dense)) return std::nullopt;
  ParameterSpec blocks = as_matrix(dense);
  std::int64_t& inputs = blocks.shape[input_dim(blocks)];
  std::int64_t& outputs = blocks.shape.back();
  if (inputs % block_inputs(packed) != 0 || outputs % kBlockOutputs != 0) return std::nullopt;
  inputs /= block_inputs(packed);
  outputs /= kBlockOutputs;
  blocks.dtype = packed;
  blocks.trained = blocks.counted = false;
  return blocks;
}

namespace {

std::vector<ParameterSpec> with_packed(std::vector<ParameterSpec> specs, DType packed,
                                       std::vector<std::string>* notes, bool only_frozen) {
  std::int64_t count = 0;
  std::map<std::string, std::int64_t> dense;  // notes, and the tensors that each is about
  for (ParameterSpec& spec : specs) {
    if (!may_be_packed(spec) || (only_frozen && !spec.frozen)) continue;
    std::optional<ParameterSpec> blocks =
        packed_spec(spec, spec.name == "head" ? DType::packed_int8 : packed);
    if (!blocks) {
      const std::int64_t inputs = spec.shape[input_dim(as_matrix(spec))], outputs = spec.shape.back();
      const auto not_multiple = [](const char* what, std::int64_t size, std::int64_t block) {
        return fmt::format("{} {} are not a multiple of {}", size, what, block);
      };
      ++dense[fmt::format("[weights] {} stays {}: {}", name_without_layer(spec.name), name_of(spec.dtype),
                          inputs % block_inputs(packed) != 0
                              ? not_multiple("inputs", inputs, block_inputs(packed))
                              : not_multiple("outputs", outputs, kBlockOutputs))];
      continue;
    }
    spec = *std::move(blocks);
    ++count;
  }
  for (const auto& [note, tensors] : dense) {
    if (notes != nullptr)
      notes->push_back(tensors == 1 ? note : fmt::format("{} ({} tensors)", note, tensors));
  }
  if (count == 0)
    fail_usage("[weights] weight_format={}: no weight is a whole number of blocks of {} inputs by {} outputs",
               name_of(packed), kGroupInputs, kBlockOutputs);
  return specs;
}

}  // namespace

std::vector<ParameterSpec> packed_specs(std::vector<ParameterSpec> specs, DType packed,
                                        std::vector<std::string>* notes) {
  return with_packed(std::move(specs), packed, notes, false);
}

std::vector<ParameterSpec> packed_frozen_specs(std::vector<ParameterSpec> specs, DType packed,
                                               std::vector<std::string>* notes) {
  if (std::none_of(specs.begin(), specs.end(), [](const ParameterSpec& spec) { return spec.frozen; }))
    fail_usage(
        "[train] weight_format={}: expected stored or dense, as training changes weights; those that "
        "trainable_parameters_mask freezes may be packed",
        name_of(packed));
  return with_packed(std::move(specs), packed, notes, true);
}

void require_packed_frozen(const std::vector<ParameterSpec>& specs) {
  for (const ParameterSpec& spec : specs) {
    if (is_packed(spec.dtype) && !spec.frozen)
      fail_usage(
          "[train] {}: is {}, which training cannot change; freeze it by trainable_parameters_mask, or start "
          "from dense weights",
          spec.name, name_of(spec.dtype));
  }
}

bool splits_whole_blocks(const AxisRules& rules, const ParameterSpec& packed) {
  const ParameterSpec dense = dense_spec(packed, DType::bf16);
  return rules.resolve(dense.dims, dense.shape).sharding == rules.resolve(packed.dims, packed.shape).sharding;
}

ParameterSpec dense_spec(const ParameterSpec& packed, DType dtype) {
  ParameterSpec dense = packed;
  dense.shape = scaled(packed, packed.shape);
  dense.dtype = dtype;
  return dense;
}

Box dense_box(const ParameterSpec& packed, const Box& box) {
  return {scaled(packed, box.start), scaled(packed, box.shape)};
}

}  // namespace switchyard
