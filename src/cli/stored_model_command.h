// What commands that make text have in common: a model with its weights and its tokenizer, from their command
// line.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "autograd/context.h"
#include "config/config.h"
#include "dist/comm/processes.h"
#include "dist/mesh.h"
#include "models/model_config.h"
#include "models/parameters.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

// All that ranks have in common.
struct ModelToRun {
  Config config;
  Mesh mesh;
  ModelConfig model;
  std::vector<ParameterSpec> specs;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::string> notes;  // for people
  Parameters::FillBlock fill;

  // This rank's weights. Collective.
  Parameters load(Context& context) const;
};

// Of `FOLDER key=value ...`, a folder with weights, or `[CONFIG.yml] key=value ...`. Error(usage), which
// names `command`.
ModelToRun model_to_run(const std::string& command, const Processes& processes,
                        std::span<const std::string> settings);

// Tokens of context that the model was trained for: max_position_embeddings, or what YaRN stretches to.
std::int64_t trained_context(const ModelToRun& run);
// Adds a note where texts of `tokens`, which max_target_length allows, are longer.
void note_context(ModelToRun& run, const std::string& command, std::int64_t tokens);

}  // namespace switchyard
