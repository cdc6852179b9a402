#include "texts/answer_guide.h"

#include <algorithm>

#include "texts/steady_seconds.h"

namespace switchyard::texts {

AnswerGuide::AnswerGuide(const TextRequest& request) : request_(&request) {
  if (request.answer != nullptr) reader_.emplace(*request.answer);
  if (request.grammar != nullptr) matcher_.emplace(request.grammar);
  masking_ = matcher_ && (request.grammar_after.empty() || request.reasoning_begin);
  limit_reasoning();
}

std::optional<std::int32_t> AnswerGuide::forced() const {
  return forced_.empty() ? std::nullopt : std::optional(forced_.front());
}

// Sets the bits of the tokens that the grammar allows.
void AnswerGuide::set_bits(std::span<std::uint32_t> bits) {
  const double begin = steady_seconds();
  matcher_->mask(bits);
  mask_seconds_ = steady_seconds() - begin;
  if (tokens_ != 0 || !request_->reasoning_begin) return;
  const auto token = static_cast<std::size_t>(*request_->reasoning_begin);
  if (token / 32 < bits.size()) bits[token / 32] |= std::uint32_t{1} << (token % 32);
}

bool AnswerGuide::mask(std::size_t vocab, std::span<const std::int32_t> withheld,
                       std::vector<std::uint32_t>& bits) {
  bits.assign((vocab + 31) / 32, ~std::uint32_t{0});
  if (is_masking()) set_bits(bits);
  if (vocab % 32 != 0) bits.back() &= (std::uint32_t{1} << (vocab % 32)) - 1;
  for (const std::int32_t token : withheld) {
    const auto at = static_cast<std::size_t>(token);
    if (at < vocab) bits[at / 32] &= ~(std::uint32_t{1} << (at % 32));
  }
  return std::ranges::any_of(bits, [](std::uint32_t word) { return word != 0; });
}

bool AnswerGuide::looks_for_grammar() const {
  return matcher_ && !masking_ && (request_->grammar_after_reasoning || !reader_->in_reasoning());
}

std::vector<std::int32_t> AnswerGuide::forbidden() const {
  if (!looks_for_grammar()) return {};
  return matcher_->forbidden_beyond(request_->grammar_after, tail_);
}

// `written`: what the token that ended the marker has behind it. White space there is the model's own.
void AnswerGuide::begin_grammar(std::string_view written) {
  masking_ = true;
  if (matcher_->accept_text(written)) return;
  const std::size_t begin = written.find_first_not_of(" \t\r\n");
  if (begin != std::string_view::npos) matcher_->accept_text(written.substr(begin));
}

void AnswerGuide::look_for_grammar_begin(const std::string& text) {
  tail_ += text;
  if (const std::size_t at = tail_.find(request_->grammar_after); at != std::string::npos) {
    begin_grammar(std::string_view(tail_).substr(at + request_->grammar_after.size()));
    tail_.clear();
  } else if (tail_.size() > request_->grammar_after.size()) {
    tail_.erase(0, tail_.size() - request_->grammar_after.size());
  }
}

// Forces the end of reasoning once it has all the tokens that it may have.
void AnswerGuide::limit_reasoning() {
  if (!reader_ || cut_reasoning_ || !request_->answer->most_reasoning || !reader_->in_reasoning()) return;
  if (reasoning_tokens_ < *request_->answer->most_reasoning) return;
  cut_reasoning_ = true;
  forced_.assign(request_->answer->reasoning_end.begin(), request_->answer->reasoning_end.end());
}

void AnswerGuide::add(std::int32_t token, const std::string& text, Piece& piece) {
  if (!forced_.empty()) forced_.pop_front();
  if (is_masking()) {
    if (tokens_ == 0 && token == request_->reasoning_begin) {
      masking_ = false;  // until the reasoning's end
    } else {
      matcher_->accept(token);
    }
  } else if (looks_for_grammar()) {
    look_for_grammar_begin(text);
  }
  ++tokens_;
  const bool was_in_reasoning = reader_->in_reasoning();
  piece.deltas = reader_->add(text);
  piece.stop_word = reader_->stop_word();
  if (was_in_reasoning || reader_->in_reasoning()) {
    piece.reasoning_tokens = 1;
    ++reasoning_tokens_;
  }
  limit_reasoning();
}

void AnswerGuide::finish(const std::string& rest, Piece& piece) {
  piece.deltas = reader_->add(rest);
  if (reader_->is_over() && piece.finish == Finish::length) piece.finish = Finish::stop;
  const auto end = is_cut(piece.finish) ? chat::TextEnd::length : chat::TextEnd::stop;
  for (chat::Delta& delta : reader_->finish(end)) piece.deltas.push_back(std::move(delta));
  piece.stop_word = reader_->stop_word();
}

}  // namespace switchyard::texts
