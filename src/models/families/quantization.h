// Weights in fewer bits: which of the forms that folders state are read here.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace switchyard {

// Error(usage) for a config.json that states a form of weights that is not read here. The line names the
// method, its format and what else tells the form.
void check_quantization(const nlohmann::json& config);

// check_quantization() for a folder. If config.json states no form, a file beside it may state one
// (hf_quant_config.json, quant_config.json, quantize_config.json), which the error names.
void check_quantization_of(const std::filesystem::path& folder, const nlohmann::json& config);

}  // namespace switchyard
