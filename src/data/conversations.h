// Conversations as training data: lines of JSON, rendered by a chat template, as tokens of which some count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "core/thread_pool.h"
#include "data/conversation_line.h"
#include "data/dataset.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

struct ConversationOptions {
  std::vector<std::string> columns;  // those that are read
  bool completion_only = true;       // answers alone are targets; false: every token
  bool last_answer_only = false;
  bool trust_messages = true;            // texts of special tokens within messages become these tokens
  std::optional<std::int32_t> bos, eos;  // around lines that are texts
  std::int64_t vocabulary = INT64_MAX;   // a token from here on is refused
  bool keeps_text = true;                // false: Conversation::text and ends are left empty
};

// One line as tokens.
struct Conversation {
  std::string place;  // its file and line
  std::string text;   // as the template renders it
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> mask;     // 1: the token is a target, if one stands before it
  std::vector<std::size_t> ends;      // of the tokens in the text; none for a line that is a text
  std::uint64_t hash = 0;             // of the line
  std::int64_t special_messages = 0;  // messages whose text holds special tokens
};

// Turns lines into tokens. Usable from several threads while the tokenizer and the template live.
class ConversationEncoder {
 public:
  // `chat`: null where the model has no template; then lines must be texts.
  ConversationEncoder(const Tokenizer& tokenizer, const chat::ChatTemplate* chat,
                      ConversationOptions options);
  // Error(usage) that begins with `place`.
  Conversation encode(nlohmann::ordered_json record, const std::string& place) const;
  const ConversationOptions& options() const { return options_; }

 private:
  Conversation encode_text(const ConversationLine& line) const;
  Conversation encode_messages(const ConversationLine& line) const;
  std::vector<TextRange> targets(const ConversationLine& line, const chat::Prompt& whole) const;
  std::vector<TextRange> marked_targets(const ConversationLine& line, const chat::Prompt& whole) const;
  TextRange rendered_answer(const ConversationLine& line, const Answer& answer,
                            const std::string& whole) const;
  std::vector<bool> wanted(const ConversationLine& line) const;
  std::int64_t messages_with_special(const ConversationLine& line, const chat::Prompt& whole,
                                     const std::vector<std::int32_t>& ids) const;
  bool holds_special(const nlohmann::ordered_json& value) const;

  const Tokenizer& tokenizer_;
  const chat::ChatTemplate* chat_;
  ConversationOptions options_;
};

// A line of JSON with its place, FILE:LINE.
struct ConversationRecord {
  std::string place, text;
};
// The lines of files and folders, as read_conversations() reads them.
std::vector<ConversationRecord> read_conversation_records(const std::string& paths);
// Calls use(index, JSON) for each line, from several threads. Rethrows what it throws for the first line.
void for_each_record(const std::vector<ConversationRecord>& records, ThreadPool& pool,
                     const std::function<void(std::size_t, nlohmann::ordered_json)>& use);

// Reads the conversations of files and folders (data/text_files.h): *.jsonl, *.ndjson and *.json.
// Error(usage) for another file, a broken line, and files without a line.
std::vector<Conversation> read_conversations(const std::string& paths, const ConversationEncoder& encoder,
                                             ThreadPool& pool);

// The inputs that a row of `sequence` tokens has of a conversation: it begins with its first token.
std::int64_t kept_inputs(const Conversation& conversation, std::int64_t sequence);
// True where no target is left within a row, so that there is nothing to learn.
bool is_dropped(const Conversation& conversation, std::int64_t sequence);

// The rows that conversations are trained in, by index: packed by best fit, or one a row.
std::vector<std::vector<std::int64_t>> conversation_rows(const std::vector<Conversation>& conversations,
                                                         const PackingOptions& packing);

// Training data of conversations, and those that `eval_fraction` holds out by a hash of the line. `report`
// gets a line with what they are. Error(usage) that names `paths` where nothing is left to train on, or too
// little for a batch.
SplitData make_conversations(std::vector<Conversation> conversations, const std::string& paths,
                             const PackingOptions& packing, double eval_fraction, std::string& report);
// The conversations in their order, and then padding: for evaluation.
std::unique_ptr<Dataset> make_held_out_conversations(const std::vector<Conversation>& conversations,
                                                     const std::string& paths, const PackingOptions& packing);

// The counts of conversations in one line, without a line end.
std::string conversations_report(const std::vector<Conversation>& conversations,
                                 const PackingOptions& packing);

}  // namespace switchyard
