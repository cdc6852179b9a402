// Runs a text through a model, and through a second model for comparison, on one rank of a session.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "eval/score.h"
#include "eval/windows.h"
#include "models/decoder.h"

namespace switchyard {

struct ScoredModel {
  ModelConfig config;
  const Parameters& parameters;
};

struct EvalText {
  std::span<const std::int32_t> tokens;  // ids below the vocabulary
  std::vector<Window> windows;
  std::int64_t rows = 1;                              // windows that go through a model at the same time
  std::int64_t logits_bytes = std::int64_t{1} << 27;  // logits of all models at the same time, without copies
};

// Scores the text's tokens by models[0], and against models[1] if given, which needs the same vocabulary and
// mesh. Collective; every rank returns all scores, in the order of the text. `on_progress` gets the number of
// finished windows, and the mean nats of a token in them.
TextScores evaluate_text(Context& context, std::span<const ScoredModel> models, const EvalText& text,
                         const std::function<void(std::int64_t windows, double nats)>& on_progress);

}  // namespace switchyard
