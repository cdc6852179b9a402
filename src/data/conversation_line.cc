#include "data/conversation_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array<std::string_view, 10> kConversationColumns{
    "messages", "conversations", "prompt", "completion", "question",
    "answer",   "instruction",   "input",  "output",     "system"};
constexpr std::array<std::string_view, 3> kMoreColumns{"text", "tools", "chat_template_kwargs"};
// Each form by the columns that it needs; the first that a line has is the line's.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kForms{
    {{"messages", "messages"},
     {"conversations", "conversations"},
     {"prompt", "completion"},
     {"question", "answer"},
     {"instruction", "output"},
     {"text", "text"}}};
constexpr std::array<std::string_view, 5> kRoles{"system", "developer", "user", "assistant", "tool"};
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kSpeakers{{{"human", "user"},
                                                                                  {"user", "user"},
                                                                                  {"gpt", "assistant"},
                                                                                  {"assistant", "assistant"},
                                                                                  {"system", "system"},
                                                                                  {"tool", "tool"},
                                                                                  {"observation", "tool"}}};

bool holds(std::span<const std::string> columns, std::string_view column) {
  return std::ranges::find(columns, column) != columns.end();
}

// Arrow's tables fill the members that a row lacks with null, at any depth.
void drop_nulls(OrderedJson& value) {
  if (value.is_object()) {
    for (auto member = value.begin(); member != value.end();) {
      if (member->is_null()) {
        member = value.erase(member);
      } else {
        drop_nulls(*member);
        ++member;
      }
    }
  } else if (value.is_array()) {
    for (OrderedJson& item : value) drop_nulls(item);
  }
}

std::string shown(const OrderedJson& value) {
  return value.is_string() ? in_quotes(value.get<std::string>())
                           : in_quotes(value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

// Reads the columns of one line.
class LineReader {
 public:
  LineReader(OrderedJson record, std::span<const std::string> columns, const std::string& place,
             std::string_view template_text)
      : record_(std::move(record)), columns_(columns), place_(place), template_text_(template_text) {}

  ConversationLine read() {
    if (!record_.is_object()) fail(fmt::format("expected an object, got {}", shown(record_)));
    drop_nulls(record_);
    const std::string_view form = form_of_line();
    if (form == "messages") {
      take_messages(list_of("messages"), 0);
    } else if (form == "conversations") {
      take_messages(from_speakers(list_of("conversations")), 0);
    } else if (form == "instruction") {
      take_messages(from_instruction(), 0);
    } else if (form == "text") {
      line_.completion = text_of("text");
    } else {
      take_pair(form, form == "prompt" ? "completion" : "answer");
    }
    take_more();
    return std::move(line_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { fail_usage("[data] {}: {}", place_, what); }

  bool has(std::string_view column) const { return holds(columns_, column) && record_.contains(column); }

  std::string_view form_of_line() const {
    for (const auto& [first, second] : kForms) {
      if (has(first) && has(second)) return first;
    }
    std::string forms;
    for (const auto& [first, second] : kForms) {
      if (!holds(columns_, first) || !holds(columns_, second)) continue;
      forms += (forms.empty() ? "" : ", ") + std::string(first);
      if (first != second) forms += fmt::format(" and {}", second);
    }
    std::string there;
    for (const auto& [name, value] : record_.items()) there += (there.empty() ? "" : ", ") + name;
    fail(fmt::format("expected one of {}, got {}; train_data_columns names what is read", forms,
                     there.empty() ? "none" : in_quotes(there)));
  }

  const OrderedJson& list_of(std::string_view column) const {
    const OrderedJson& list = record_.at(column);
    if (!list.is_array() || list.empty())
      fail(fmt::format("{}: expected a list of one message or more, got {}", column, shown(list)));
    return list;
  }

  std::string text_of(std::string_view column) const {
    const OrderedJson& text = record_.at(column);
    if (!text.is_string()) fail(fmt::format("{}: expected a text, got {}", column, shown(text)));
    return text.get<std::string>();
  }

  OrderedJson from_speakers(const OrderedJson& turns) const {
    OrderedJson messages = OrderedJson::array();
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const std::string field = fmt::format("conversations[{}]", i);
      const OrderedJson& turn = turns[i];
      if (!turn.is_object() || !turn.contains("from") || !turn.contains("value"))
        fail(fmt::format("{}: expected from and value, got {}", field, shown(turn)));
      const auto speaker =
          std::ranges::find_if(kSpeakers, [&](const auto& s) { return turn.at("from") == s.first; });
      if (speaker == kSpeakers.end())
        fail(fmt::format("{}.from: expected human, gpt, system or tool, got {}", field,
                         shown(turn.at("from"))));
      OrderedJson message{{"role", speaker->second}, {"content", turn.at("value")}};
      if (turn.contains("weight")) message["weight"] = turn.at("weight");
      messages.push_back(std::move(message));
    }
    return messages;
  }

  OrderedJson from_instruction() const {
    OrderedJson messages = OrderedJson::array();
    if (has("system") && !text_of("system").empty())
      messages.push_back({{"role", "system"}, {"content", text_of("system")}});
    std::string asked = text_of("instruction");
    if (has("input") && !text_of("input").empty()) asked += "\n" + text_of("input");
    messages.push_back({{"role", "user"}, {"content", asked}});
    messages.push_back({{"role", "assistant"}, {"content", text_of("output")}});
    return messages;
  }

  void take_pair(std::string_view first, std::string_view second) {
    const OrderedJson &prompt = record_.at(first), &completion = record_.at(second);
    if (prompt.is_array() != completion.is_array())
      fail(fmt::format("{} and {}: expected two texts or two lists of messages", first, second));
    if (!prompt.is_array()) {
      line_.prompt = text_of(first);
      line_.completion = text_of(second);
      return;
    }
    OrderedJson messages = prompt;
    for (const OrderedJson& message : list_of(second)) messages.push_back(message);
    take_messages(std::move(messages), prompt.size());
  }

  // Answers before message `first` are part of a prompt.
  void take_messages(OrderedJson messages, std::size_t first) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const std::string field = fmt::format("messages[{}]", i);
      check_message(messages[i], field);
      const bool weighs = take_weight(messages[i], field);
      if (messages[i].at("role") == "assistant") line_.answers.push_back({i, i < first, weighs});
    }
    if (line_.answers.empty() || line_.answers.back().message < first)
      fail("expected a message of the role assistant to train on, got none");
    line_.body = {{"messages", std::move(messages)}};
  }

  void check_message(OrderedJson& message, const std::string& field) const {
    if (!message.is_object()) fail(fmt::format("{}: expected an object, got {}", field, shown(message)));
    if (!message.contains("role") || !message.at("role").is_string())
      fail(fmt::format("{}.role: expected a text", field));
    const auto role = message.at("role").get<std::string>();
    if (!is_role(role))
      fail(fmt::format("{}.role: expected {}, got {}", field, fmt::join(kRoles, ", "), in_quotes(role)));
    if (message.contains("tool_calls")) check_calls(message.at("tool_calls"), field + ".tool_calls");
    const bool says_more = role == "assistant" && (message.contains("tool_calls") || has_reasoning(message));
    if (!message.contains("content") && !says_more)
      fail(fmt::format("{}.content: expected a text, got none", field));
    if (message.contains("content")) check_content(message.at("content"), field + ".content");
  }

  bool is_role(const std::string& role) const {
    return std::ranges::find(kRoles, role) != kRoles.end() ||
           template_text_.find("'" + role + "'") != std::string_view::npos ||
           template_text_.find("\"" + role + "\"") != std::string_view::npos;
  }

  static bool has_reasoning(const OrderedJson& message) {
    return message.contains("reasoning_content") || message.contains("reasoning") ||
           message.contains("thinking");
  }

  void check_content(const OrderedJson& content, const std::string& field) const {
    if (content.is_string()) return;
    if (!content.is_array())
      fail(fmt::format("{}: expected a text or a list of texts, got {}", field, shown(content)));
    for (const OrderedJson& part : content) {
      if (!part.is_object() || !part.contains("type") || part.at("type") != "text")
        fail(fmt::format("{}: expected parts of the type \"text\", got {}", field, shown(part)));
    }
  }

  void check_calls(const OrderedJson& calls, const std::string& field) const {
    for (std::size_t i = 0; calls.is_array() && i < calls.size(); ++i) {
      if (!calls[i].is_object() || !calls[i].contains("function")) continue;
      const OrderedJson& function = calls[i].at("function");
      if (!function.is_object() || !function.contains("arguments")) continue;
      const OrderedJson& arguments = function.at("arguments");
      if (!arguments.is_string() || arguments == "") continue;
      if (!OrderedJson::accept(arguments.get<std::string>()))
        fail(fmt::format("{}[{}].function.arguments: expected JSON, got {}", field, i, shown(arguments)));
    }
  }

  // False for a message of weight 0. The template does not get the weight.
  bool take_weight(OrderedJson& message, const std::string& field) const {
    const auto found = message.find("weight");
    if (found == message.end()) return true;
    const bool known = found->is_number() && (*found == 0 || *found == 1);
    if (!known) fail(fmt::format("{}.weight: expected 0 or 1, got {}", field, shown(*found)));
    const bool weighs = *found != 0;
    message.erase("weight");
    return weighs;
  }

  // Takes the columns that the template gets beside the messages.
  void take_more() {
    for (const char* name : {"tools", "chat_template_kwargs"}) {
      if (!record_.contains(name)) continue;
      OrderedJson value = record_.at(name);
      if (value.is_string()) {
        value = OrderedJson::parse(value.get<std::string>(), nullptr, false);
        if (value.is_discarded())
          fail(fmt::format("{}: expected JSON, got {}", name, shown(record_.at(name))));
        drop_nulls(value);
      }
      const bool tools = std::string_view(name) == "tools";
      if (value.is_null() || value.empty()) continue;
      if (tools ? !value.is_array() : !value.is_object())
        fail(fmt::format("{}: expected {}, got {}", name, tools ? "a list" : "an object", shown(value)));
      if (line_.body.is_null()) fail(fmt::format("{}: expected them beside messages, got a text", name));
      if (!tools && (value.contains("add_generation_prompt") || value.contains("continue_final_message")))
        fail(
            "chat_template_kwargs: add_generation_prompt and continue_final_message have no place in "
            "training");
      line_.body[name] = std::move(value);
    }
  }

  OrderedJson record_;
  std::span<const std::string> columns_;
  const std::string& place_;
  std::string_view template_text_;
  ConversationLine line_;
};

}  // namespace

std::span<const std::string_view> conversation_columns() {
  return kConversationColumns;
}

void check_conversation_columns(std::span<const std::string> columns) {
  for (const std::string& column : columns) {
    if (std::ranges::find(kConversationColumns, column) == kConversationColumns.end() &&
        std::ranges::find(kMoreColumns, column) == kMoreColumns.end())
      fail_usage("[data] train_data_columns={}: expected columns of {}, {}, got {}", fmt::join(columns, ","),
                 fmt::join(kConversationColumns, ", "), fmt::join(kMoreColumns, ", "), in_quotes(column));
  }
  const bool any = std::ranges::any_of(
      kForms, [&](const auto& form) { return holds(columns, form.first) && holds(columns, form.second); });
  if (!any)
    fail_usage(
        "[data] train_data_columns={}: expected messages, conversations, prompt,completion, question,answer, "
        "instruction,output or text among them",
        fmt::join(columns, ","));
}

ConversationLine read_conversation_line(OrderedJson record, std::span<const std::string> columns,
                                        const std::string& place, std::string_view template_text) {
  return LineReader(std::move(record), columns, place, template_text).read();
}

}  // namespace switchyard
