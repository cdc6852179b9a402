// The data of a run, from its config.
#pragma once

#include <cstdint>
#include <memory>

#include "config/config.h"
#include "data/dataset.h"
#include "engine/session.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

struct RunData {
  std::unique_ptr<Tokenizer> tokenizer;  // null for synthetic data
  std::unique_ptr<Dataset> train, eval;  // eval is null where the run does not evaluate
  std::int64_t end = INT64_MAX;          // training ends when so many rows are read: num_epoch
};

// `vocab`: of the model. Error(usage) for whatever is wrong with data_path, the tokenizer, or the shares of a
// mixture.
RunData make_run_data(const Config& config, std::int64_t vocab, const BatchSizes& sizes);

// What the config says of text: the held-out share is there whether the run evaluates or not.
TextOptions text_options(const Config& config);

}  // namespace switchyard
