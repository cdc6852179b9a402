// One line of conversations: its columns, checked, as messages or as a text.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

struct Answer {
  std::size_t message;     // its index
  bool in_prompt, weighs;  // weighs: its weight is not 0
};

// A line as messages, or, where `body` is null, as a text of two parts.
struct ConversationLine {
  nlohmann::ordered_json body;  // messages, tools and chat_template_kwargs, as of a chat request
  std::vector<Answer> answers;  // an assistant's messages
  std::string prompt, completion;
};

// The columns that are read without train_data_columns: those of conversations. `text` is not among them: a
// file of texts would be trained whole.
std::span<const std::string_view> conversation_columns();
// Error(usage) that names train_data_columns for a column that no line of conversations has, and for columns
// that say nothing without another one.
void check_conversation_columns(std::span<const std::string> columns);

// Reads a line, of which only `columns` count (tools and chat_template_kwargs always do). `place`: file and
// line, for errors; `template_text`: what may name further roles. Error(usage).
ConversationLine read_conversation_line(nlohmann::ordered_json record, std::span<const std::string> columns,
                                        const std::string& place, std::string_view template_text);

}  // namespace switchyard
