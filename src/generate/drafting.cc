// Generation with drafts: the model's first prediction layer drafts the token after the one that was picked,
// and the model reads both in one call. Every token is picked from the model's own logits, by the draw that
// it would have without drafts, so the texts are the same:
// a draft only decides whether the second token's logits count.
#include <algorithm>
#include <chrono>

#include "generate/growing_texts.h"

namespace switchyard {
namespace {

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Drafting {
 public:
  Drafting(Generator& generator, const std::vector<std::vector<std::int32_t>>& prompts,
           const GenerateOptions& options, const GrowingTexts::OnToken& on_token)
      : generator_(generator),
        prompts_(prompts),
        options_(options),
        texts_(generator, prompts, options, on_token),
        drafts_(prompts.size()) {}

  Generated run() {
    const double begin = clock_seconds();
    double first = begin;
    if (options_.most_tokens > 0) {
      read_prompts();
      first = clock_seconds();
      while (!going_.empty()) step();
    }
    result_.prefill_seconds = first - begin;
    result_.decode_seconds = clock_seconds() - first;
    result_.texts = texts_.take();
    return std::move(result_);
  }

 private:
  // The prediction layer reads every chunk of a prompt with the tokens that follow on its tokens.
  void read_prompts() {
    for_each_chunk(prompts_, options_.prompt_chunk,
                   [&](const std::vector<SlotTokens>& fed, std::vector<SlotTokens>& next,
                       const std::vector<bool>& ends) {
                     const Tensor logits = generator_.feed(fed);
                     std::vector<GrowingTexts::Wanted> wanted;
                     for (std::size_t i = 0; i < fed.size(); ++i) {
                       if (ends[i]) wanted.push_back({fed[i].slot, i});
                     }
                     if (!wanted.empty()) texts_.append_next(logits, wanted);
                     for (const auto& [text, row] : wanted) {
                       if (texts_.goes_on(text)) going_.push_back(text);
                       next[row].tokens.push_back(texts_.tokens(text).back());
                     }
                     draft(next);
                   });
    std::ranges::sort(going_);
  }

  // Feeds the last token and the draft of every text that goes on. Row 2 i of the logits follows the token of
  // the i-th, row 2 i + 1 its draft.
  void step() {
    std::vector<SlotTokens> fed, next;
    std::vector<GrowingTexts::Wanted> wanted, accepted;
    for (const std::size_t text : going_) {
      wanted.push_back({text, 2 * fed.size()});
      fed.push_back({text, {texts_.tokens(text).back(), drafts_[text]}});
    }
    const Tensor logits = generator_.feed_each(fed);
    texts_.append_next(logits, wanted);
    for (const auto& [text, row] : wanted) {
      const std::int32_t token = texts_.tokens(text).back();
      const bool right = token == drafts_[text];
      ++result_.drafted;
      result_.accepted += right;
      next.push_back({text, {token}});
      if (right && texts_.goes_on(text))
        accepted.push_back({text, row + 1});
      else
        generator_.truncate(text, generator_.length(text) - 1);
    }
    if (!accepted.empty()) texts_.append_next(logits, accepted);
    for (const auto& [text, row] : accepted) next[row / 2].tokens.push_back(texts_.tokens(text).back());
    std::erase_if(going_, [&](std::size_t text) { return !texts_.goes_on(text); });
    ++result_.steps;
    if (!going_.empty()) draft(next);
  }

  void draft(const std::vector<SlotTokens>& next) {
    const Tensor logits = generator_.draft(next);
    std::vector<std::int32_t> drafts(next.size());
    if (logits.defined()) {
      const SamplingConfig greedy;
      std::vector<TokenPick> picks;
      for (std::size_t i = 0; i < next.size(); ++i)
        picks.push_back({.row = static_cast<std::int64_t>(i),
                         .vocab = std::min(options_.vocab, logits.dim(1)),
                         .config = &greedy});
      std::ranges::transform(generator_.pick(logits, picks), drafts.begin(), &PickedToken::token);
    }
    generator_.broadcast(std::span(drafts));
    for (std::size_t i = 0; i < next.size(); ++i) drafts_[next[i].slot] = drafts[i];
  }

  Generator& generator_;
  const std::vector<std::vector<std::int32_t>>& prompts_;
  const GenerateOptions& options_;
  GrowingTexts texts_;
  Generated result_;
  std::vector<std::int32_t> drafts_;  // for each text: the draft of the token after its last
  std::vector<std::size_t> going_;    // texts that go on, ascending
};

}  // namespace

Generated generate_with_drafts(Generator& generator, const std::vector<std::vector<std::int32_t>>& prompts,
                               const GenerateOptions& options,
                               const std::function<void(std::size_t text, std::int32_t token)>& on_token) {
  return Drafting(generator, prompts, options, on_token).run();
}

}  // namespace switchyard
