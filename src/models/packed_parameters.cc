#include "models/packed_parameters.h"

#include <fmt/format.h>

#include "core/error.h"
#include "kernels/packed_block.h"

namespace switchyard {
namespace {

// Dims of the shape that count blocks: the last of the inputs and the last of the outputs.
std::size_t input_dim(const ParameterSpec& spec) {
  return spec.matrix.stack + spec.matrix.inputs - 1;
}

Shape scaled(const ParameterSpec& packed, const Shape& blocks) {
  Shape shape = blocks;
  shape[input_dim(packed)] *= kBlockInputs;
  shape.back() *= kBlockOutputs;
  return shape;
}

bool may_be_packed(const ParameterSpec& spec) {
  if (spec.name == "head") return true;
  return spec.matrix.inputs > 0 && !spec.name.ends_with(".gate") && !spec.name.ends_with(".wkv_b");
}

}  // namespace

std::vector<ParameterSpec> specs_to_run(const Config& config, const ModelConfig& model,
                                        std::vector<std::string>* notes) {
  const std::optional<DType> packed = packed_dtype(config.get_string("weight_format"));
  return packed ? packed_specs(parameter_specs(model), *packed, notes) : parameter_specs(model);
}

std::vector<ParameterSpec> packed_specs(std::vector<ParameterSpec> specs, DType packed,
                                        std::vector<std::string>* notes) {
  std::int64_t count = 0;
  for (ParameterSpec& spec : specs) {
    if (!may_be_packed(spec)) continue;
    ParameterSpec blocks = spec;
    if (spec.name == "head") blocks.matrix = {0, 1};
    const std::int64_t inputs = spec.shape[input_dim(blocks)], outputs = spec.shape.back();
    if (inputs % kBlockInputs != 0 || outputs % kBlockOutputs != 0) {
      if (notes != nullptr)
        notes->push_back(fmt::format(
            "[weights] {} stays {}: {} inputs in a row by {} outputs are no whole blocks of {} by {}",
            spec.name, name_of(spec.dtype), inputs, outputs, kBlockInputs, kBlockOutputs));
      continue;
    }
    blocks.shape[input_dim(blocks)] /= kBlockInputs;
    blocks.shape.back() /= kBlockOutputs;
    blocks.dtype = spec.name == "head" ? DType::packed_int8 : packed;
    blocks.trained = false;
    spec = std::move(blocks);
    ++count;
  }
  if (count == 0)
    fail_usage("[weights] weight_format={}: no weight is a whole number of blocks of {} inputs by {} outputs",
               name_of(packed), kBlockInputs, kBlockOutputs);
  return specs;
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
