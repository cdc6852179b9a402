// A model that makes or scores texts, for the commands that do so.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/model.h"

namespace switchyard {

// Reads the settings of a command line (engine/command_config.h) and opens the model that they name, with its
// tokenizer. Refuses what the command does not do. Error(usage), which names `command`.
ModelOnRanks model_to_run(const std::string& command, Processes& processes,
                          std::span<const std::string> settings);

// Tokens of context that the model was trained for: max_position_embeddings, or what YaRN stretches to.
std::int64_t trained_context(const ModelOnMesh& model);
// Adds a note where texts of `tokens`, which max_target_length allows, are longer.
void note_context(ModelOnMesh& model, const std::string& command, std::int64_t tokens);

}  // namespace switchyard
