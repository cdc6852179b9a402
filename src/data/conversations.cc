#include "data/conversations.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "chat/jinja/text.h"
#include "core/error.h"
#include "core/json_file.h"
#include "data/json_records.h"
#include "data/text_files.h"
#include "data/text_source.h"

namespace switchyard {
namespace {

using chat::Json;

constexpr const char* kMarkIt =
    "mark what an assistant says by {% generation %} in a template of your own (chat_template_path)";

// A template may raise an error of several lines.
std::string on_one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

// Marks the tokens that overlap a range; one that lies on both sides of an end counts.
std::vector<std::uint8_t> mask_of(const std::vector<std::size_t>& ends,
                                  const std::vector<TextRange>& ranges) {
  std::vector<std::uint8_t> mask(ends.size(), 0);
  for (const TextRange& range : ranges) {
    for (auto token = std::ranges::upper_bound(ends, range.begin) - ends.begin(); token < std::ssize(ends);
         ++token) {
      const std::size_t begin = token == 0 ? 0 : ends[static_cast<std::size_t>(token) - 1];
      if (begin >= range.end) break;
      mask[static_cast<std::size_t>(token)] = 1;
    }
  }
  return mask;
}

Json part_of(const Json& body, std::size_t messages, bool asks) {
  Json part = body;
  Json& list = part.at("messages");
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(messages), list.end());
  part["add_generation_prompt"] = asks;
  return part;
}

std::string text_of_id(const Tokenizer& tokenizer, std::int32_t id) {
  return tokenizer.decode_all(std::span(&id, 1));
}

}  // namespace

ConversationEncoder::ConversationEncoder(const Tokenizer& tokenizer, const chat::ChatTemplate* chat,
                                         ConversationOptions options)
    : tokenizer_(tokenizer), chat_(chat), options_(std::move(options)) {
  check_conversation_columns(options_.columns);
}

Conversation ConversationEncoder::encode(Json record, const std::string& place) const {
  const ConversationLine line = read_conversation_line(std::move(record), options_.columns, place,
                                                       chat_ == nullptr ? "" : chat_->source().text);
  try {
    Conversation conversation = line.body.is_null() ? encode_text(line) : encode_messages(line);
    conversation.place = place;
    if (!options_.keeps_text) conversation.text = {}, conversation.ends = {};
    const auto outside =
        std::ranges::find_if(conversation.tokens, [&](std::int32_t id) { return id >= options_.vocabulary; });
    if (outside != conversation.tokens.end())
      throw chat::BadRequest(
          "", fmt::format("token {} ({}), expected tokens below the model's vocabulary of {}", *outside,
                          in_quotes(text_of_id(tokenizer_, *outside)), options_.vocabulary));
    return conversation;
  } catch (const chat::BadRequest& problem) {
    fail_usage("[data] {}: {}", place, on_one_line(problem.what()));
  }
}

// The tokens of the prompt and of the whole text share a longest beginning; the tokens behind it are targets.
Conversation ConversationEncoder::encode_text(const ConversationLine& line) const {
  const std::string body = line.prompt + line.completion;
  const auto encoded = [&](const std::string& text) {
    std::vector<TextRange> plain;
    if (!options_.trust_messages && !text.empty()) plain.push_back({0, text.size()});
    std::vector<std::int32_t> ids = tokenizer_.encode_with_special(text, plain);
    if (options_.bos) ids.insert(ids.begin(), *options_.bos);
    return ids;
  };
  Conversation out;
  out.tokens = encoded(body);
  const std::vector<std::int32_t> alone = encoded(line.prompt);
  out.special_messages = options_.trust_messages && holds_special(body) ? 1 : 0;
  if (options_.bos) out.text = text_of_id(tokenizer_, *options_.bos);
  out.text += body;
  if (options_.eos && (out.tokens.empty() || out.tokens.back() != *options_.eos || line.completion.empty())) {
    out.tokens.push_back(*options_.eos);
    out.text += text_of_id(tokenizer_, *options_.eos);
  }
  const auto common = std::ranges::mismatch(alone, out.tokens).in2 - out.tokens.begin();
  out.mask.assign(out.tokens.size(), 1);
  if (options_.completion_only) std::fill_n(out.mask.begin(), common, std::uint8_t{0});
  return out;
}

Conversation ConversationEncoder::encode_messages(const ConversationLine& line) const {
  if (chat_ == nullptr)
    throw chat::BadRequest("",
                           "messages need a chat template, and the model's files have none: give "
                           "chat_template_path=FILE");
  Json body = line.body;
  body["add_generation_prompt"] = false;
  chat::Prompt whole = chat_->prompt(body);
  const std::vector<TextRange> ranges = targets(line, whole);
  const std::vector<TextRange> plain = options_.trust_messages ? std::vector<TextRange>{} : whole.foreign;
  std::optional<PlacedTokens> placed = tokenizer_.encode_with_places(whole.text, plain);
  if (!placed)
    throw chat::BadRequest("",
                           "the tokenizer changes this text before it cuts it into tokens, so that no "
                           "token's place in an answer is certain: give prompt and completion as texts");
  Conversation out;
  out.mask = mask_of(placed->ends, ranges);
  out.tokens = std::move(placed->ids);
  out.ends = std::move(placed->ends);
  out.special_messages = options_.trust_messages ? messages_with_special(line, whole, out.tokens) : 0;
  out.text = std::move(whole.text);
  return out;
}

std::vector<TextRange> ConversationEncoder::targets(const ConversationLine& line,
                                                    const chat::Prompt& whole) const {
  if (!options_.completion_only) {
    if (!std::ranges::all_of(line.answers, &Answer::weighs))
      throw chat::BadRequest("",
                             "weight 0 leaves an answer out, but sft_train_on_completion_only=false trains "
                             "all tokens: expected one of the two");
    return {{0, whole.text.size()}};
  }
  if (chat_->marks_generation(line.body)) return marked_targets(line, whole);
  std::vector<TextRange> ranges;
  const std::vector<bool> want = wanted(line);
  for (std::size_t i = options_.last_answer_only ? line.answers.size() - 1 : 0; i < line.answers.size();
       ++i) {
    const TextRange range = rendered_answer(line, line.answers[i], whole.text);
    if (want[i]) ranges.push_back(range);
  }
  return ranges;
}

std::vector<bool> ConversationEncoder::wanted(const ConversationLine& line) const {
  std::vector<bool> want;
  for (const Answer& answer : line.answers) {
    const bool last = answer.message == line.answers.back().message;
    want.push_back(answer.weighs && !answer.in_prompt && (last || !options_.last_answer_only));
  }
  return want;
}

// The template's own marks. Which answer a mark belongs to is known where there are as many of both.
std::vector<TextRange> ConversationEncoder::marked_targets(const ConversationLine& line,
                                                           const chat::Prompt& whole) const {
  if (whole.generated.empty())
    throw chat::BadRequest("",
                           "the template's {% generation %} marks no answer here: it counts where it prints "
                           "into the text itself, not within a macro");
  const std::vector<bool> want = wanted(line);
  if (std::ranges::all_of(want, std::identity())) return whole.generated;
  if (whole.generated.size() != line.answers.size())
    throw chat::BadRequest(
        "", fmt::format("the template marks {} places by {{% generation %}} for {} answers, so "
                        "that those that do not count cannot be told",
                        whole.generated.size(), line.answers.size()));
  std::vector<TextRange> ranges;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (want[i]) ranges.push_back(whole.generated[i]);
  }
  return ranges;
}

// The answer is the part of the messages up to it that the messages before it, with the generation prompt,
// do not render. White space at the end of that part is the template's.
TextRange ConversationEncoder::rendered_answer(const ConversationLine& line, const Answer& answer,
                                               const std::string& whole) const {
  if (answer.message == 0)
    throw chat::BadRequest("",
                           fmt::format("the conversation begins with an answer, of which the template does "
                                       "not tell where it begins: {}",
                                       kMarkIt));
  const std::string before = chat_->prompt(part_of(line.body, answer.message, true)).text;
  const std::string after = chat_->prompt(part_of(line.body, answer.message + 1, false)).text;
  const std::size_t end = jinja::stripped(after, jinja::Sides::right).end;
  if (!whole.starts_with(before) || !whole.starts_with(std::string_view(after).substr(0, end)))
    throw chat::BadRequest(
        "",
        fmt::format("the template shows messages[{}] otherwise once more messages follow, so that its tokens "
                    "cannot be told: {}{}",
                    answer.message, kMarkIt,
                    options_.last_answer_only ? "" : ", or set sft_last_answer_only=true"));
  return {before.size(), std::max(before.size(), end)};
}

std::int64_t ConversationEncoder::messages_with_special(const ConversationLine& line,
                                                        const chat::Prompt& whole,
                                                        const std::vector<std::int32_t>& ids) const {
  if (tokenizer_.encode_with_special(whole.text, whole.foreign) == ids) return 0;
  return std::ranges::count_if(line.body.at("messages"), [&](const Json& message) {
    for (const auto& [name, value] : message.items()) {
      if (name != "role" && holds_special(value)) return true;
    }
    return false;
  });
}

// True when a text, or one within a list or an object, has the text of a special token in it.
bool ConversationEncoder::holds_special(const Json& value) const {
  if (value.is_structured())
    return std::ranges::any_of(value, [&](const Json& item) { return holds_special(item); });
  if (!value.is_string() || value == "") return false;
  const std::string& text = value.get_ref<const std::string&>();
  const TextRange all[] = {{0, text.size()}};
  return tokenizer_.encode_with_special(text) != tokenizer_.encode_with_special(text, all);
}

namespace {

RecordForm form_of_records(const std::string& path, std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin != std::string_view::npos && text[begin] == '[') return RecordForm::array;
  return path.ends_with(".json") ? RecordForm::values : RecordForm::lines;
}

void add_records(const std::string& path, std::vector<ConversationRecord>& records) {
  const std::string content = read_whole_file(path);
  std::string_view text = content;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  RecordReader reader(path, text, form_of_records(path, text), {});
  while (const std::optional<JsonRecord> record = reader.next())
    records.push_back({fmt::format("{}:{}", path, record->line), std::string(record->text)});
}

Json record_of(const ConversationRecord& record) {
  Json value = Json::parse(record.text, nullptr, false);
  return value.is_discarded() ? Json::parse(standard_json(record.text)) : value;
}

}  // namespace

std::vector<ConversationRecord> read_conversation_records(const std::string& paths) {
  std::vector<ConversationRecord> records;
  for (const std::string& file : find_text_files(paths)) {
    if (const std::string reason = reason_against_file(file); !reason.empty())
      fail_usage("[data] {}: it {}", file, reason);
    if (!has_json_name(file))
      fail_usage("[data] {}: expected conversations as JSON lines (*.jsonl, *.ndjson) or *.json", file);
    add_records(file, records);
  }
  if (records.empty()) fail_usage("[data] data_path={}: expected a conversation a line, got no line", paths);
  return records;
}

void for_each_record(const std::vector<ConversationRecord>& records, ThreadPool& pool,
                     const std::function<void(std::size_t, Json)>& use) {
  std::vector<std::exception_ptr> problems(records.size());
  pool.for_range(std::ssize(records), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      try {
        use(i, record_of(records[i]));
      } catch (...) {
        problems[i] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& problem : problems) {  // that of the first line, whichever thread was first
    if (problem) std::rethrow_exception(problem);
  }
}

std::vector<Conversation> read_conversations(const std::string& paths, const ConversationEncoder& encoder,
                                             ThreadPool& pool) {
  const std::vector<ConversationRecord> records = read_conversation_records(paths);
  std::vector<Conversation> conversations(records.size());
  for_each_record(records, pool, [&](std::size_t i, Json record) {
    conversations[i] = encoder.encode(std::move(record), records[i].place);
    conversations[i].hash = XXH64(records[i].text.data(), records[i].text.size(), 0);
  });
  return conversations;
}

}  // namespace switchyard
