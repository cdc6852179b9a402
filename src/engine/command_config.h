// The config of a command line whose first word may be a folder or file with weights.
#pragma once

#include <span>
#include <string>

#include "config/config.h"

namespace switchyard {

// Reads `FOLDER key=value ...` (or a GGUF file) or `[CONFIG.yml] key=value ...`, with at least one rank for
// each of `processes` processes. Error(usage) that names `command`.
Config config_to_run(const std::string& command, int processes, std::span<const std::string> settings);

// Does so for a command that changes no weights: they have the type `dtype` where no weight_dtype is given.
Config config_to_run_fixed(const std::string& command, int processes, std::span<const std::string> settings);

// Reads a training's command line. FOLDER is a Hugging Face folder or a GGUF file: training starts from a
// checkpoint's weights only by load_parameters_path. Error(usage) that names `command`.
Config config_to_train(const std::string& command, int processes, std::span<const std::string> settings);

}  // namespace switchyard
