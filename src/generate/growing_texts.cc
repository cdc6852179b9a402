#include "generate/growing_texts.h"

#include <algorithm>
#include <limits>

#include "generate/sampling.h"
#include "kernels/registry/row_independence.h"

namespace switchyard {

void for_each_chunk(const std::vector<std::vector<std::int32_t>>& prompts, std::int64_t chunk,
                    const std::function<void(const std::vector<SlotTokens>&, std::vector<SlotTokens>&,
                                             const std::vector<bool>&)>& visit) {
  const std::size_t most =
      chunk > 0 ? static_cast<std::size_t>(chunk) : std::numeric_limits<std::size_t>::max();
  struct Chunks {
    std::vector<SlotTokens> fed, next;
    std::vector<bool> ends;
  };
  const bool apart = rows_are_independent();
  bool more = true;
  for (std::size_t begin = 0; more; begin += most) {
    Chunks several, single;
    more = false;
    for (std::size_t slot = 0; slot < prompts.size(); ++slot) {
      const auto& prompt = prompts[slot];
      if (begin >= prompt.size()) continue;
      const std::size_t size = std::min(most, prompt.size() - begin);
      Chunks& chunks = apart && size == 1 ? single : several;
      const bool ends = begin + size == prompt.size();
      chunks.ends.push_back(ends);
      more = more || !ends;
      const auto from = prompt.begin() + static_cast<std::ptrdiff_t>(begin),
                 to = from + static_cast<std::ptrdiff_t>(size);
      chunks.fed.push_back({slot, {from, to}});
      chunks.next.push_back({slot, {from + 1, ends ? to : to + 1}});
    }
    for (Chunks* const chunks : {&several, &single})
      if (!chunks->fed.empty()) visit(chunks->fed, chunks->next, chunks->ends);
  }
}

GrowingTexts::GrowingTexts(Generator& generator, const std::vector<std::vector<std::int32_t>>& prompts,
                           const GenerateOptions& options, const OnToken& on_token)
    : generator_(generator),
      prompts_(prompts),
      options_(options),
      on_token_(on_token),
      texts_(prompts.size()),
      histories_(prompts.size()) {
  for (std::size_t i = 0; i < prompts.size() && options.sampling.uses_history(); ++i)
    histories_[i].add_prompt(prompts[i]);
}

float GrowingTexts::draw_for(std::size_t text) const {
  return draw_of(options_.seed, text, texts_[text].tokens.size());
}

std::vector<GrowingTexts::Picked> GrowingTexts::pick(const Tensor& logits,
                                                     const std::vector<Wanted>& wanted) const {
  const std::int64_t width = logits.shape().back(), vocab = std::min(options_.vocab, width);
  std::vector<TokenPick> picks;
  for (const Wanted& of : wanted)
    picks.push_back({.row = static_cast<std::int64_t>(of.row),
                     .vocab = vocab,
                     .config = &options_.sampling,
                     .seen = histories_[of.text].seen(),
                     .uniform = draw_for(of.text),
                     .most_probable = options_.log_probs ? 0 : -1});
  std::vector<Picked> result;
  for (const PickedToken& found : generator_.pick(logits.reshaped({logits.size() / width, width}), picks)) {
    Picked picked{.token = found.token, .bad = found.bad, .bad_logit = found.bad_logit};
    if (options_.log_probs) picked.log_prob = static_cast<double>(found.logit) - log_sum_of(found, vocab);
    result.push_back(picked);
  }
  return result;
}

void GrowingTexts::append_next(const Tensor& logits, const std::vector<Wanted>& wanted) {
  std::vector<Picked> picked(wanted.size());
  if (logits.defined()) picked = pick(logits, wanted);
  generator_.broadcast(std::span(picked));
  for (std::size_t i = 0; i < wanted.size(); ++i) append(wanted[i].text, picked[i]);
}

void GrowingTexts::append(std::size_t text, const Picked& picked) {
  GeneratedText& made = texts_[text];
  if (picked.bad >= 0) {
    std::vector<std::int32_t> before = prompts_[text];
    before.insert(before.end(), made.tokens.begin(), made.tokens.end());
    const std::size_t size = before.size();
    const std::int64_t layer = generator_.first_broken_layer({text, std::move(before)});
    fail_runtime(
        "[generate] text {}: the model's logits after {} tokens are no numbers (that of token {} is {}); {}",
        text, size, picked.bad, picked.bad_logit, broken_layer_text(layer, generator_.layers()));
  }
  made.tokens.push_back(picked.token);
  if (options_.log_probs) made.log_probs.push_back(picked.log_prob);
  if (options_.sampling.uses_history()) histories_[text].add_made(picked.token);
  made.ended = std::ranges::find(options_.ends, picked.token) != options_.ends.end();
  on_token_(text, picked.token);
}

}  // namespace switchyard
