// Carried files: what a model's folder says beside its weights. They are the files of its tokenizer with
// their settings and chat templates, config.json, which states the tokens that begin, end and pad texts, and
// generation_config.json, which states how to generate. A checkpoint holds them below tokenizer/; `generate`,
// `serve`, `chat` and `eval` read them there, and an export writes them beside its weights.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/save.h"

namespace switchyard {

// The folder of carried files in a checkpoint.
inline constexpr std::string_view kCarriedFolder = "tokenizer/";

// The files that go with the weights at `source`, named as in a checkpoint ("tokenizer/tokenizer.json"): a
// Hugging Face folder, a GGUF file, whose metadata say the same in another form, a checkpoint, or a run.
// Error(usage) for a damaged file.
std::vector<ExtraFile> carried_files(const std::string& source);
std::vector<ExtraFile> carried_files(const CheckpointFolder& checkpoint);

// The tokenizer of a run.
struct RunTokenizer {
  std::string type, path;  // as for make_tokenizer; an empty type: the run has none
  std::optional<std::int32_t> eos = {};
};

// The files that checkpoints of a run carry: those of its first weights, and of its tokenizer. A tokenizer
// other than the weights' takes the place of that one with its settings and templates; its last token is
// added to those that end a text. `notes` receives a line for that, and one for templates that are left out.
// `source`: what the files of the weights belong to, for the lines.
std::vector<ExtraFile> carried_by_run(std::vector<ExtraFile> weights, const std::string& source,
                                      const RunTokenizer& tokenizer, std::vector<std::string>* notes);

// bos_token_id, eos_token_id and pad_token_id as a model's config.json is to state them: those of the
// config.json that the checkpoint carries, or else those of its tokenizer, null for a token that it lacks.
// Empty where the checkpoint has neither.
nlohmann::ordered_json special_ids(const CheckpointFolder& checkpoint);

}  // namespace switchyard
