// switchyard train: trains a model and writes metrics, plots and a summary.
#pragma once

#include <span>
#include <string>

namespace switchyard {

// `args` follow the word `train`: [CONFIG.yml] key=value …. Returns the exit status; throws Error.
int train_command(std::span<const std::string> args);

}  // namespace switchyard
