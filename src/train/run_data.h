// Opens the data of a run that its config describes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "config/config.h"
#include "data/dataset.h"
#include "engine/session.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

struct RunData {
  std::unique_ptr<Tokenizer> tokenizer;  // null for synthetic data
  std::unique_ptr<Dataset> train, eval;  // eval is null when the run does not evaluate
  std::int64_t end = INT64_MAX;          // training ends after this many rows: num_epoch
  std::string report = {};               // of conversations: what they are; "" for other data
};

// `vocab`: the model's vocabulary. Error(usage) for an
// invalid data_path, tokenizer, or share of a mixture.
RunData make_run_data(const Config& config, std::int64_t vocab, const BatchSizes& sizes);

// The text at the end of a training continues `prompt`. Error(usage) for a token that the model lacks.
void check_prompt(const Config& config, std::int64_t vocab, const Tokenizer* tokenizer);

// The config's text options. The held-out share stays the same whether the run evaluates or not.
TextOptions text_options(const Config& config);

}  // namespace switchyard
