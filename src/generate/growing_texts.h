// GrowingTexts: the texts that one generate() call makes.
// Rank 0 picks their next tokens; all ranks append them.
#pragma once

#include <functional>
#include <vector>

#include "generate/generate.h"
#include "generate/token_history.h"

namespace switchyard {

class GrowingTexts {
 public:
  using OnToken = std::function<void(std::size_t text, std::int32_t token)>;
  // The text of prompt i is the sequence of slot i. All arguments must outlive the object.
  GrowingTexts(Generator& generator, const std::vector<std::vector<std::int32_t>>& prompts,
               const GenerateOptions& options, const OnToken& on_token);

  // Row `row` of the logits is what follows the last token of `text`.
  struct Wanted {
    std::size_t text, row;
  };
  // Picks the next token of some texts from rank 0's logits, f32 of V values a row, and appends it on all
  // ranks. Error(runtime) that names the text, the token and the layer
  // where logits are not finite. Collective.
  void append_next(const Tensor& logits, const std::vector<Wanted>& wanted);

  // Returns whether a text has neither ended nor reached its length.
  bool goes_on(std::size_t text) const {
    return !texts_[text].ended && std::ssize(texts_[text].tokens) < options_.most_tokens;
  }
  const std::vector<std::int32_t>& tokens(std::size_t text) const { return texts_[text].tokens; }
  std::vector<GeneratedText> take() { return std::move(texts_); }

 private:
  // The outcome of a pick. Plain bytes, since it is broadcast.
  struct Picked {
    double log_prob = 0;
    std::int32_t token = 0;
    std::int32_t bad = -1;  // the first token whose logit is not finite; then there is no next token
    float bad_logit = 0;
  };
  std::vector<Picked> pick(const Tensor& logits, const std::vector<Wanted>& wanted) const;
  float draw_for(std::size_t text) const;
  void append(std::size_t text, const Picked& picked);

  Generator& generator_;
  const std::vector<std::vector<std::int32_t>>& prompts_;
  const GenerateOptions& options_;
  const OnToken& on_token_;
  std::vector<GeneratedText> texts_;
  std::vector<TokenHistory> histories_;  // where penalties need them
};

// Cuts prompts into chunks of at most `chunk` tokens (0: whole prompts) and calls visit(fed, next, ends) for
// the chunks of all prompts that begin at the same position: `fed` has a chunk for each prompt's slot, `next`
// the tokens that follow its tokens as far as the prompt has them, `ends` whether it is the prompt's last.
// Chunks of one token are visited apart where rows must be independent: their attention is another kernel.
void for_each_chunk(
    const std::vector<std::vector<std::int32_t>>& prompts, std::int64_t chunk,
    const std::function<void(const std::vector<SlotTokens>& fed, std::vector<SlotTokens>& next,
                             const std::vector<bool>& ends)>& visit);

}  // namespace switchyard
