#include "serve/protocol/message_blocks.h"

#include <fmt/format.h>

#include <optional>

namespace switchyard::serve {
namespace {

using chat::Json;

[[noreturn]] void refuse(const std::string& place, const std::string& expected) {
  throw BadRequest(place, fmt::format("{}: expected {}", place, expected));
}

void refuse_citations(const Json& block, const std::string& place) {
  const Json* const citations = member_of(block, "citations");
  if (citations == nullptr || !citations->is_object()) return;
  if (const Json* const enabled = member_of(*citations, "enabled"); enabled != nullptr && *enabled != false)
    throw BadRequest(place + ".citations",
                     fmt::format("{}.citations: is not built, and would change the answer", place));
}

std::string joined_text(const Json& content, const std::string& path);

// A document whose source is text: its title and context, where it has some, and its text.
std::string document_text(const Json& block, const std::string& place) {
  const Json* const source = member_of(block, "source");
  const std::string path = place + ".source";
  if (source == nullptr || !source->is_object()) refuse(path, "an object");
  refuse_citations(block, place);
  std::string text;
  for (const char* name : {"title", "context"}) {
    if (member_of(block, name) != nullptr) text += text_member(block, name, place) + "\n";
  }
  const std::string type = text_member(*source, "type", path);
  if (type == "text") return text + text_member(*source, "data", path);
  if (type != "content")
    refuse(path + ".type", fmt::format("text or content, as this model reads text only, got {}", type));
  const Json* const content = member_of(*source, "content");
  return text + joined_text(content == nullptr ? Json() : *content, path + ".content");
}

std::string search_result_text(const Json& block, const std::string& place) {
  refuse_citations(block, place);
  const Json* const content = member_of(block, "content");
  return fmt::format("{}\n{}\n{}", text_member(block, "title", place), text_member(block, "source", place),
                     joined_text(content == nullptr ? Json() : *content, place + ".content"));
}

// Returns the text of a block that is one; none for other kinds.
std::optional<std::string> text_of_block(const Json& block, const std::string& type,
                                         const std::string& place) {
  if (type == "text") return text_member(block, "text", place);
  if (type == "document") return document_text(block, place);
  if (type == "search_result") return search_result_text(block, place);
  return {};
}

// Joins the texts of a text, or of a list of blocks that are texts.
std::string joined_text(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse(path, "a text or a list of blocks");
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", path, i);
    const std::string type = text_member(content[i], "type", place);
    const std::optional<std::string> one = text_of_block(content[i], type, place);
    if (!one) refuse(place + ".type", fmt::format("text, document or search_result, got {}", type));
    text += (i > 0 ? "\n" : "") + *one;
  }
  return text;
}

class ChatMessages {
 public:
  explicit ChatMessages(MessagesChat& chat) : chat_(chat) {}

  void add(Json message, const std::string& place) {
    chat_.places.emplace_back(fmt::format("messages[{}]", messages_.size()), place);
    messages_.push_back(std::move(message));
  }

  void add_user(const Json& content, const std::string& path) {
    std::optional<std::string> text;
    for (std::size_t i = 0; i < content.size(); ++i) {
      const std::string place = fmt::format("{}[{}]", path, i);
      const std::string type = text_member(content[i], "type", place);
      if (type == "tool_result") {
        add(tool_message(content[i], place), place);
      } else if (const std::optional<std::string> one = text_of_block(content[i], type, place)) {
        text = text ? *text + "\n" + *one : *one;
      } else {
        refuse(place + ".type", fmt::format("text, document, search_result or tool_result, got {}", type));
      }
    }
    if (text) add({{"role", "user"}, {"content", *text}}, path);
  }

  void add_assistant(const Json& content, const std::string& path) {
    Json message{{"role", "assistant"}, {"content", ""}};
    std::string text, thinking;
    for (std::size_t i = 0; i < content.size(); ++i) {
      const std::string place = fmt::format("{}[{}]", path, i);
      const std::string type = text_member(content[i], "type", place);
      if (type == "text") {
        text += text_member(content[i], "text", place);
      } else if (type == "thinking") {
        thinking += text_member(content[i], "thinking", place);
      } else if (type == "tool_use") {
        message["tool_calls"].push_back(call_of(content[i], place));
      } else if (type != "redacted_thinking") {  // which no other model can read
        refuse(place + ".type", fmt::format("text, thinking, redacted_thinking or tool_use, got {}", type));
      }
    }
    message["content"] = text;
    if (!thinking.empty()) message["reasoning_content"] = thinking;
    add(std::move(message), path);
  }

  // The answer goes on with the last message where that is the assistant's. An empty one is none.
  void go_on_with_last(const std::string& place) {
    const Json& last = messages_.back();
    if (last["role"] != "assistant") return;
    if (last.contains("tool_calls")) refuse(place, "a tool_result for each tool_use before the answer");
    if (last["content"] == "") {
      messages_.erase(messages_.size() - 1);
      return;
    }
    chat_.body["continue_final_message"] = true;
    chat_.body["add_generation_prompt"] = false;
    chat_.places.emplace_back("continue_final_message", place);
  }
  bool empty() const { return messages_.empty(); }
  void finish() { chat_.body["messages"] = std::move(messages_); }

 private:
  static Json tool_message(const Json& block, const std::string& place) {
    const Json* const result = member_of(block, "content");
    Json message{{"role", "tool"},
                 {"tool_call_id", text_member(block, "tool_use_id", place)},
                 {"content", result == nullptr ? "" : joined_text(*result, place + ".content")}};
    if (const Json* const is_error = member_of(block, "is_error"); is_error != nullptr && *is_error != false)
      message["is_error"] = *is_error;
    return message;
  }
  static Json call_of(const Json& block, const std::string& place) {
    const Json* const input = member_of(block, "input");
    if (input == nullptr || !input->is_object()) refuse(place + ".input", "an object");
    return {{"id", text_member(block, "id", place)},
            {"type", "function"},
            {"function", {{"name", text_member(block, "name", place)}, {"arguments", input->dump()}}}};
  }

  MessagesChat& chat_;
  Json messages_ = Json::array();
};

// A message in another API's form would lose these.
void refuse_members_of_chats(const Json& message, const std::string& place) {
  for (const char* name : {"tool_calls", "tool_call_id", "function_call", "reasoning_content", "reasoning",
                           "thinking", "refusal", "audio"}) {
    if (member_of(message, name) != nullptr)
      throw BadRequest(fmt::format("{}.{}", place, name),
                       fmt::format("{}.{}: expected blocks of the content instead", place, name));
  }
}

}  // namespace

const Json* member_of(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string text_member(const Json& object, const char* name, const std::string& path) {
  const Json* const text = member_of(object, name);
  if (text == nullptr || !text->is_string()) refuse(path + "." + name, "a text");
  return text->get<std::string>();
}

void add_messages(const Json& body, MessagesChat& chat) {
  ChatMessages messages(chat);
  if (const Json* const system = member_of(body, "system"))
    messages.add({{"role", "system"}, {"content", joined_text(*system, "system")}}, "system");
  const Json* const list = member_of(body, "messages");
  if (list == nullptr || !list->is_array() || list->empty())
    refuse("messages", "a list of one message or more");
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Json& message = (*list)[i];
    const std::string place = fmt::format("messages[{}]", i);
    const std::string role = text_member(message, "role", place);
    if (role != "user" && role != "assistant")
      refuse(place + ".role", fmt::format("user or assistant, got {}", role));
    refuse_members_of_chats(message, place);
    const Json* const content = member_of(message, "content");
    if (content == nullptr || (!content->is_string() && !content->is_array()))
      refuse(place + ".content", "a text or a list of blocks");
    if (content->is_string()) {
      messages.add({{"role", role}, {"content", *content}}, place);
    } else if (role == "user") {
      messages.add_user(*content, place + ".content");
    } else {
      messages.add_assistant(*content, place + ".content");
    }
  }
  if (messages.empty()) refuse("messages", "a message with a text");
  messages.go_on_with_last(fmt::format("messages[{}]", list->size() - 1));
  if (messages.empty()) refuse("messages", "a message with a text");
  messages.finish();
}

}  // namespace switchyard::serve
