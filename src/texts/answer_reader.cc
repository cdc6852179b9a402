#include "texts/answer_reader.h"

#include <utility>

namespace switchyard::texts {

using chat::Delta;

AnswerReader::AnswerReader(const AnswerForm& form)
    : parser_(form.format, form.tools, form.opens_reasoning, !form.keeps_reasoning),
      stop_(form.stop),
      one_call_(form.one_call) {}

// Content passes the stop texts. A stop text does not reach over a call, so text that was held back is
// given before the call.
void AnswerReader::keep(std::vector<Delta> deltas, std::vector<Delta>& kept) {
  for (Delta& delta : deltas) {
    if (stop_.found() || ended_by_call_) return;
    if (delta.kind != Delta::Kind::content) {
      if (std::string held = stop_.finish(); !held.empty())
        kept.push_back({.kind = Delta::Kind::content, .text = std::move(held)});
      if (one_call_ && delta.index > 0) {
        ended_by_call_ = true;
        return;
      }
      kept.push_back(std::move(delta));
      continue;
    }
    if (std::string given = stop_.add(delta.text); !given.empty())
      kept.push_back({.kind = Delta::Kind::content, .text = std::move(given)});
  }
}

std::vector<Delta> AnswerReader::add(std::string_view text) {
  std::vector<Delta> kept;
  if (is_over()) return kept;
  keep(parser_.add(text), kept);
  ended_by_call_ = ended_by_call_ || (one_call_ && parser_.first_call_is_whole());
  return kept;
}

std::vector<Delta> AnswerReader::finish(chat::TextEnd end) {
  std::vector<Delta> kept;
  if (!stop_.found() && !ended_by_call_) keep(parser_.finish(end), kept);
  if (stop_.found() || ended_by_call_) return kept;
  if (std::string held = stop_.finish(); !held.empty())
    kept.push_back({.kind = Delta::Kind::content, .text = std::move(held)});
  return kept;
}

bool AnswerReader::is_over() const {
  return stop_.found() || ended_by_call_;
}

}  // namespace switchyard::texts
