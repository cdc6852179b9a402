// AnswerGuide: what the answer of a chat asks of a text's next token, and what its tokens give to the answer.
// It masks tokens that the answer's grammar does not allow, and forces the end of reasoning that is too long.
// For the model's thread; texts of their own on several threads at once.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/grammar.h"
#include "texts/answer_reader.h"
#include "texts/text.h"

namespace switchyard::texts {

class AnswerGuide {
 public:
  // A request without an answer's form has nothing to guide. The request must outlive the guide.
  explicit AnswerGuide(const TextRequest& request);

  // Returns the token that must come next, where there is one.
  std::optional<std::int32_t> forced() const;
  bool has_grammar() const { return matcher_.has_value(); }
  // Returns whether the grammar counts for the next token.
  bool is_masking() const { return matcher_ && masking_; }
  // Sets `bits`, 32 tokens a word, of those of `vocab` tokens that may come next, without those `withheld`.
  // Returns false where none is left.
  bool mask(std::size_t vocab, std::span<const std::int32_t> withheld, std::vector<std::uint32_t>& bits);
  // Returns the tokens that would begin what the grammar holds, and go on as it does not allow.
  std::vector<std::int32_t> forbidden() const;
  // Returns whether the grammar lets the text end here.
  bool may_end() const { return !is_masking() || matcher_->may_end(); }

  // Takes the next token with its text, and puts the answer's changes into `piece`.
  void add(std::int32_t token, const std::string& text, Piece& piece);
  // Puts the answer's last changes into `piece`, whose finish says why there is no further token.
  void finish(const std::string& rest, Piece& piece);
  // Ends the answer: its grammar has no further token.
  void end() { ended_ = true; }
  // Returns how many calls the answer has begun.
  std::size_t calls() const { return reader_ ? reader_->calls() : 0; }
  // Returns how long the last mask took, once.
  std::optional<double> take_mask_seconds() { return std::exchange(mask_seconds_, std::nullopt); }
  bool is_over() const { return ended_ || (reader_ && reader_->is_over()); }

 private:
  void set_bits(std::span<std::uint32_t> bits);
  bool looks_for_grammar() const;
  void look_for_grammar_begin(const std::string& text);
  void begin_grammar(std::string_view written);
  void limit_reasoning();

  const TextRequest* request_;
  std::optional<AnswerReader> reader_;
  std::optional<grammar::Matcher> matcher_;
  bool masking_ = false, ended_ = false, cut_reasoning_ = false;
  std::string tail_;  // of the text before the grammar begins
  std::int64_t tokens_ = 0, reasoning_tokens_ = 0;
  std::deque<std::int32_t> forced_;
  std::optional<double> mask_seconds_;
};

}  // namespace switchyard::texts
