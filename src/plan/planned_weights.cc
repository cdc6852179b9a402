#include "plan/planned_weights.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace switchyard {
namespace {

struct Published {
  std::string_view model;  // how its model_name begins
  DType type;
  bool only_experts;  // else all matrices but the head
};

constexpr Published kPublished[] = {{"gpt-oss-", DType::packed_mxfp4, true},
                                    {"deepseek3-671b", DType::packed_fp8, false},
                                    {"deepseek3.2-", DType::packed_fp8, false},
                                    {"kimi-k2-", DType::packed_fp8, false},
                                    {"minimax-m2-", DType::packed_fp8, false}};

bool is_of_experts(std::string_view parameter) {
  return parameter.ends_with(".moe.wi_0") || parameter.ends_with(".moe.wi_1") ||
         parameter.ends_with(".moe.wo");
}

}  // namespace

std::vector<ParameterSpec> specs_as_published(const Config& config, const Mesh& mesh,
                                              std::vector<ParameterSpec> specs,
                                              std::vector<std::string>* notes) {
  const std::string& name = config.get_string("model_name");
  const auto found = std::ranges::find_if(
      kPublished, [&](const Published& published) { return name.starts_with(published.model); });
  if (found == std::end(kPublished) || config.get_string("weight_format") != "stored" ||
      !config.is_none("load_parameters_path"))
    return specs;
  const auto stored = [&](const ParameterSpec& spec) -> std::optional<DType> {
    const bool blocks = found->only_experts ? is_of_experts(spec.name) : spec.name != "head";
    return blocks ? std::optional(found->type) : std::nullopt;
  };
  return specs_stored_as(config, mesh, stored, name + " is published so", std::move(specs), notes);
}

void require_weights_fit(const ModelOnMesh& model, WeightUse use, std::vector<std::string>* notes) {
  initial_weights(model.config, model.model, model.specs, notes, use);
}

}  // namespace switchyard
