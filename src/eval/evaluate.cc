#include "eval/evaluate.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "generate/generator.h"
#include "kernels/pointwise/strided_copy.h"
#include "models/blocks/layers.h"
#include "models/pipeline.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// The numbers of a token's score, in the order of score(): nats, KL, same top.
constexpr std::int64_t kNumbers = 3;

// Drops what only training needs.
ModelConfig for_scoring(ModelConfig model) {
  model.moe_execution.balance_weight = 0;
  model.moe_execution.token_chunks = 1;
  return model;
}

// Returns the input of the head, [B,S,M]; defined on the last stage only.
Array hidden_of(Context& context, const ScoredModel& scored, const Batch& batch) {
  const ModelConfig model = for_scoring(scored.config);
  const Shape shape{batch.inputs.dim(0), batch.inputs.dim(1), model.emb};
  Array hidden;
  Pipeline(context, PipelineSchedule::one_forward_one_backward, model.dtype, shape,
           block_sharding(*context.rules, shape))
      .evaluate([&](const PipelinePass& pass, const Array& input) {
        const HiddenStates out = hidden_states(context, model, scored.parameters, place_batch(context, batch),
                                               {pass.block, input});
        hidden = out.final_hidden;
        return StageOutput{out.output, {}};
      });
  return hidden;
}

// The places, counted within a rank's part of the sequence, between which all scored tokens of all rows lie.
struct Places {
  std::int64_t begin, end;
};
Places scored_places(std::span<const Window> windows, std::int64_t part) {
  Places places{part, 0};
  for (const Window& window : windows) {
    for (std::int64_t i = window.first_scored; i < window.length; ++i) {
      places.begin = std::min(places.begin, i % part);
      places.end = std::max(places.end, i % part + 1);
    }
  }
  return places;
}

// One call of the models: some windows are the rows of a batch. The sequence is scored piece by piece, so
// that logits of the whole sequence never exist at once.
class Call {
 public:
  Call(Context& context, std::span<const ScoredModel> models, const EvalText& text,
       std::span<const Window> windows, std::int64_t length)
      : context_(context), models_(models), text_(text), windows_(windows), shape_{text.rows, length} {
    const Shape logits{shape_[0], shape_[1], models[0].config.vocab};
    const Sharding rules = context.rules->sharding(
        {"activation_embed_and_logits_batch", "activation_norm_length", "activation_vocab"}, logits);
    tokens_ = Sharding{{rules.dims[0], rules.dims[1], {}}, {}};
    vocabulary_axes_ = rules.dims[2];
    parts_ = context.mesh->product(tokens_.dims[1]);
  }

  // Returns nats, KL and same top of every place, f32 [B,S,3]; 0 for places that are not scored.
  Tensor scores() {
    const Batch batch = batch_of_windows(text_.tokens, windows_, shape_[0], shape_[1]);
    std::vector<Array> hidden;
    for (const ScoredModel& model : models_) hidden.push_back(hidden_of(context_, model, batch));
    Tensor all = Memory().zeros(DType::f32, {shape_[0], shape_[1], kNumbers});
    for (Array& x : hidden) {
      if (x.defined()) x = reshard(context_, x, tokens_);
    }
    const std::int64_t part = shape_[1] / parts_;
    const Places places = scored_places(windows_, part);
    const std::int64_t most = tokens_at_once();
    for (std::int64_t begin = places.begin; begin < places.end; begin += most) {
      const std::int64_t count = std::min(most, places.end - begin);
      const Tensor piece = scores_of_piece(hidden, begin, count);
      for (std::int64_t row = 0; row < shape_[0]; ++row) {
        for (std::int64_t i = 0; i < parts_ * count; ++i)
          std::copy_n(
              piece.data<float>() + (row * parts_ * count + i) * kNumbers, kNumbers,
              all.data<float>() + (row * shape_[1] + i / count * part + begin + i % count) * kNumbers);
      }
    }
    return all;
  }

 private:
  // Tokens of a piece per part of the sequence; if possible a multiple of the ranks that share a vocabulary.
  std::int64_t tokens_at_once() const {
    const std::int64_t one = shape_[0] * parts_ * models_[0].config.vocab *
                             static_cast<std::int64_t>(sizeof(float) * models_.size());
    const std::int64_t most = std::max<std::int64_t>(1, text_.logits_bytes / one);
    const std::int64_t sharers = context_.mesh->product(vocabulary_axes_);
    return most < sharers ? most : most / sharers * sharers;
  }

  // Returns places [begin, begin + count) of each part of the sequence, one part after the other: a sequence
  // of parts_ · count tokens with the layout of the whole sequence.
  Array piece_of(const Array& hidden, std::int64_t begin, std::int64_t count) const {
    const Tensor& local = hidden.tensor();
    const Tensor piece = context_.empty(local.dtype(), {local.dim(0), count, local.dim(2)});
    strided_copy(*context_.pool, local.view().slice(1, begin, count), piece.view());
    return make_leaf(piece, {shape_[0], parts_ * count, hidden.shape()[2]}, tokens_, false);
  }

  // Returns the layout for scoring the logits of a piece of so many tokens: ranks that hold parts of the
  // vocabulary take a part of the tokens each, if the tokens divide evenly.
  Sharding scoring(std::int64_t tokens) const {
    Sharding sharding = tokens_;
    for (const Axis axis : vocabulary_axes_) sharding.dims[1].push_back(axis);
    return tokens % context_.mesh->product(sharding.dims[1]) == 0 ? sharding : tokens_;
  }

  Tensor scores_of_piece(const std::vector<Array>& hidden, std::int64_t begin, std::int64_t count) const {
    const Shape shape{shape_[0], parts_ * count, kNumbers};
    Tensor all = context_.empty(DType::f32, shape);
    if (context_.stage.is_last()) {
      const Sharding sharding = scoring(shape[1]);
      std::vector<Tensor> logits;
      for (std::size_t m = 0; m < models_.size(); ++m) {
        const Array whole = output_logits(context_, models_[m].config, models_[m].parameters,
                                          piece_of(hidden[m], begin, count));
        const Tensor own = reshard(context_, whole, sharding).tensor();
        logits.push_back(
            read_back(context_, own, "logits", [&] { return Tensor(Memory(), DType::f32, own.shape()); }));
      }
      const Tensor own = context_.empty(DType::f32, local_shape(*context_.mesh, shape, sharding));
      copy(score(logits, begin, count, sharding).view(), own.view());
      all = replicate(context_, make_leaf(own, shape, sharding, false)).tensor();
    }
    if (context_.stage.count > 1)
      context_.comm->broadcast(context_.stage.across, context_.stage.count - 1, all.view());
    return read_back(context_, all, "scores", [&] { return Tensor(Memory(), DType::f32, shape); });
  }

  // Scores this rank's block of the piece.
  Tensor score(const std::vector<Tensor>& logits, std::int64_t begin, std::int64_t count,
               const Sharding& sharding) const {
    const std::int64_t rows = logits[0].dim(0), tokens = logits[0].dim(1), vocab = logits[0].dim(2);
    const Shape first =
        local_offset(*context_.mesh, context_.rank, {shape_[0], parts_ * count, vocab}, sharding);
    Tensor scores = Memory().zeros(DType::f32, {rows, tokens, kNumbers});
    context_.pool->for_range(rows * tokens, 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t at = from; at < to; ++at) {
        const std::int64_t row = first[0] + at / tokens, in_piece = first[1] + at % tokens;
        if (row >= static_cast<std::int64_t>(windows_.size())) continue;
        const Window& window = windows_[static_cast<std::size_t>(row)];
        const std::int64_t place = in_piece / count * (shape_[1] / parts_) + begin + in_piece % count;
        if (place < window.first_scored || place >= window.length) continue;
        const auto of = [&](const Tensor& x) {
          return std::span<const float>(x.data<float>() + at * vocab, static_cast<std::size_t>(vocab));
        };
        const std::int32_t token = text_.tokens[static_cast<std::size_t>(window.begin + place + 1)];
        const TokenScore s =
            score_token(of(logits[0]), token, logits.size() > 1 ? of(logits[1]) : std::span<const float>());
        float* const numbers = scores.data<float>() + at * kNumbers;
        numbers[0] = s.nats;
        numbers[1] = s.kl;
        numbers[2] = s.same_top ? 1.0f : 0.0f;
      }
    });
    return scores;
  }

  Context& context_;
  std::span<const ScoredModel> models_;
  const EvalText& text_;
  std::span<const Window> windows_;
  Shape shape_;  // [B,S]
  Sharding tokens_;
  Axes vocabulary_axes_;
  std::int64_t parts_ = 1;  // of the sequence
};

// Fails: the model's logits give no finite score for the token after place `i` of a window. Collective.
[[noreturn]] void fail_without_scores(Context& context, const ScoredModel& scored, const char* name,
                                      const EvalText& text, std::span<const Window> windows, std::size_t row,
                                      std::int64_t i) {
  const Window& window = windows[row];
  const auto before =
      std::span(text.tokens).subspan(static_cast<std::size_t>(window.begin), static_cast<std::size_t>(i + 1));
  Generator generator(context, for_scoring(scored.config), scored.parameters, text.rows, window.length);
  const std::int64_t layer = generator.first_broken_layer({row, {before.begin(), before.end()}});
  fail_runtime(
      "[eval] token {} of the text, after {} tokens of its window: the {}'s logits give no finite score; {}",
      window.begin + i + 1, i + 1, name, broken_layer_text(layer, scored.config.layers));
}

}  // namespace

TextScores evaluate_text(Context& context, std::span<const ScoredModel> models, const EvalText& text,
                         const std::function<void(std::int64_t, double)>& on_progress) {
  CHECK(!models.empty() && models.size() <= 2 && !text.windows.empty(), "{} models, {} windows",
        models.size(), text.windows.size());
  for (const ScoredModel& model : models)
    CHECK(model.config.vocab == models[0].config.vocab, "vocabularies of {} and {}", models[0].config.vocab,
          model.config.vocab);
  const NoGrad no_grad(context);
  const std::int64_t length = text.windows[0].length;  // no window is longer
  TextScores scores;
  double nats = 0;
  for (std::size_t begin = 0; begin < text.windows.size(); begin += static_cast<std::size_t>(text.rows)) {
    const auto windows =
        std::span(text.windows)
            .subspan(begin, std::min(static_cast<std::size_t>(text.rows), text.windows.size() - begin));
    const Tensor all = Call(context, models, text, windows, length).scores();
    for (std::size_t row = 0; row < windows.size(); ++row) {
      for (std::int64_t i = windows[row].first_scored; i < windows[row].length; ++i) {
        const float* const numbers =
            all.data<float>() + (static_cast<std::int64_t>(row) * length + i) * kNumbers;
        if (!std::isfinite(numbers[0]))
          fail_without_scores(context, models[0], "model", text, windows, row, i);
        if (models.size() > 1 && !std::isfinite(numbers[1]))
          fail_without_scores(context, models[1], "--against model", text, windows, row, i);
        scores.nats.push_back(numbers[0]);
        nats += numbers[0];
        if (models.size() > 1) scores.kl.push_back(numbers[1]);
        if (models.size() > 1 && numbers[2] != 0) ++scores.same_top;
      }
    }
    on_progress(static_cast<std::int64_t>(begin + windows.size()),
                nats / static_cast<double>(scores.nats.size()));
  }
  return scores;
}

}  // namespace switchyard
