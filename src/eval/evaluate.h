// A text through a model, and through a second one for comparison, on one rank of a session.
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
  std::int64_t rows = 1;                              // windows that go through a model at once
  std::int64_t logits_bytes = std::int64_t{1} << 27;  // logits of all models at once, without copies
};

// Scores the tokens of the text by models[0], against models[1] where there is one: of the same vocabulary,
// on the same mesh. Collective; the first rank of the run returns all scores, in the order of the text, and
// so do the others. `on_progress` is told how many windows are done, and the mean nats of a token in them.
TextScores evaluate_text(Context& context, std::span<const ScoredModel> models, const EvalText& text,
                         const std::function<void(std::int64_t windows, double nats)>& on_progress);

}  // namespace switchyard
