// Weights in fewer bits: which of the forms that folders state are read here.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace switchyard {

// Error(usage) for a config.json that states a form of weights that is not read here. The line names the
// method, its format and what else tells the form.
void check_quantization(const nlohmann::json& config);

// The same for a folder: a form may also be stated by a file beside a config.json that states none
// (hf_quant_config.json, quant_config.json, quantize_config.json), which the line names.
void check_quantization_of(const std::filesystem::path& folder, const nlohmann::json& config);

}  // namespace switchyard
