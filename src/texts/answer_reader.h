// AnswerReader: reads the answer of a chat out of a model's text, and says when the answer is over. For the
// model's thread alone.
#pragma once

#include <string_view>
#include <vector>

#include "chat/answer_parser.h"
#include "texts/stop_text.h"
#include "texts/text.h"

namespace switchyard::texts {

class AnswerReader {
 public:
  explicit AnswerReader(const AnswerForm& form);

  // Takes the next text of the model, with the texts of its special tokens. Returns what may be sent.
  std::vector<chat::Delta> add(std::string_view text);
  // Returns the rest, when no more text is added.
  std::vector<chat::Delta> finish(chat::TextEnd end);
  // Returns whether the answer ends here: at a stop text, or after its only call.
  bool is_over() const;
  std::size_t calls() const { return parser_.calls(); }
  bool in_reasoning() const { return parser_.in_reasoning(); }
  // Returns the stop text that ended the answer, or an empty text.
  const std::string& stop_word() const { return stop_.found_word(); }

 private:
  void keep(std::vector<chat::Delta> deltas, std::vector<chat::Delta>& kept);

  chat::AnswerParser parser_;
  StopText stop_;
  bool one_call_;
  bool ended_by_call_ = false;
};

}  // namespace switchyard::texts
