// Opens a model that generates or scores texts, for the commands that do so.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/model.h"

namespace switchyard {

// Reads the settings of a command line (engine/command_config.h) and opens the model that they name, with its
// tokenizer. Error(usage) that names `command`, also for settings that the command does not support.
ModelOnRanks model_to_run(const std::string& command, Processes& processes,
                          std::span<const std::string> settings);

// The context length in training: max_position_embeddings, or the length that YaRN stretches it to.
std::int64_t trained_context(const ModelOnMesh& model);
// Adds a note when texts of `tokens` tokens, which max_target_length allows, exceed that context.
void note_context(ModelOnMesh& model, const std::string& command, std::int64_t tokens);

}  // namespace switchyard
