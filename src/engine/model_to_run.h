// ModelToRun: a model with its weights and its tokenizer, from settings as on a command line.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "autograd/context.h"
#include "config/config.h"
#include "models/model_config.h"
#include "models/parameters.h"
#include "parallel/comm/processes.h"
#include "parallel/mesh.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

// Told how many of the weights are read so far, and how many there are.
using LoadProgress = std::function<void(std::int64_t read, std::int64_t all)>;

// All that ranks have in common.
struct ModelToRun {
  Config config;
  Mesh mesh;
  ModelConfig model;
  std::vector<ParameterSpec> specs;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::string> notes;  // for people
  Parameters::FillBlock fill;

  // Makes this rank's weights. Collective. Rank 0 calls `progress` while weights are packed.
  Parameters load(Context& context, const LoadProgress& progress = {}) const;
};

// Reads `FOLDER key=value ...` or `[CONFIG.yml] key=value ...`. Error(usage), which names `command`.
Config config_to_run(const std::string& command, const Processes& processes,
                     std::span<const std::string> settings);

// Reads the same settings, and finds the weights that they name. Error(usage), which names `command`.
ModelToRun model_to_run(const std::string& command, const Processes& processes,
                        std::span<const std::string> settings);

// Tokens of context that the model was trained for: max_position_embeddings, or what YaRN stretches to.
std::int64_t trained_context(const ModelToRun& run);
// Adds a note where texts of `tokens`, which max_target_length allows, are longer.
void note_context(ModelToRun& run, const std::string& command, std::int64_t tokens);

}  // namespace switchyard
