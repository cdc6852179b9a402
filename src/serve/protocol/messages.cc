#include "serve/protocol/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace switchyard::serve {
namespace {

using chat::Delta;
using chat::Json;
using Kind = chat::Delta::Kind;

// Fields without effect here.
constexpr std::array kSilent = {"metadata", "service_tier", "anthropic_version"};

const Json* member_of(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string text_member(const Json& object, const char* name, const std::string& path) {
  const Json* const text = member_of(object, name);
  if (text == nullptr || !text->is_string())
    throw BadRequest(path + "." + name, fmt::format("{}.{}: expected a text", path, name));
  return text->get<std::string>();
}

// Joins the texts of a text, or of a list of text blocks.
std::string joined_text(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw BadRequest(path, path + ": expected a text or a list of blocks");
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", path, i);
    const std::string type = text_member(content[i], "type", place);
    if (type != "text")
      throw BadRequest(place + ".type", fmt::format("{}.type: expected text, got {}", place, type));
    if (i > 0) text += "\n";
    text += text_member(content[i], "text", place);
  }
  return text;
}

void add_user_message(const Json& content, const std::string& path, Json& messages) {
  Json texts = Json::array();
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", path, i);
    const std::string type = text_member(content[i], "type", place);
    if (type == "text") {
      texts.push_back({{"type", "text"}, {"text", text_member(content[i], "text", place)}});
    } else if (type == "tool_result") {
      const Json* const result = member_of(content[i], "content");
      messages.push_back({{"role", "tool"},
                          {"tool_call_id", text_member(content[i], "tool_use_id", place)},
                          {"content", result == nullptr ? "" : joined_text(*result, place + ".content")}});
    } else {
      throw BadRequest(place + ".type",
                       fmt::format("{}.type: expected text or tool_result, got {}", place, type));
    }
  }
  if (!texts.empty()) messages.push_back({{"role", "user"}, {"content", joined_text(texts, path)}});
}

void add_assistant_message(const Json& content, const std::string& path, Json& messages) {
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
      const Json* const input = member_of(content[i], "input");
      if (input == nullptr || !input->is_object())
        throw BadRequest(place + ".input", fmt::format("{}.input: expected an object", place));
      message["tool_calls"].push_back(
          {{"id", text_member(content[i], "id", place)},
           {"type", "function"},
           {"function", {{"name", text_member(content[i], "name", place)}, {"arguments", input->dump()}}}});
    } else {
      throw BadRequest(place + ".type",
                       fmt::format("{}.type: expected text, thinking or tool_use, got {}", place, type));
    }
  }
  message["content"] = text;
  if (!thinking.empty()) message["reasoning_content"] = thinking;
  messages.push_back(std::move(message));
}

Json messages_of(const Json& body) {
  Json messages = Json::array();
  if (const Json* const system = member_of(body, "system"))
    messages.push_back({{"role", "system"}, {"content", joined_text(*system, "system")}});
  const Json* const list = member_of(body, "messages");
  if (list == nullptr || !list->is_array() || list->empty())
    throw BadRequest("messages", "messages: expected a list of one message or more");
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string place = fmt::format("messages[{}]", i);
    const std::string role = text_member((*list)[i], "role", place);
    const Json* const content = member_of((*list)[i], "content");
    if (content == nullptr || (!content->is_string() && !content->is_array()))
      throw BadRequest(place + ".content", place + ".content: expected a text or a list of blocks");
    if (content->is_string() && (role == "user" || role == "assistant")) {
      messages.push_back({{"role", role}, {"content", *content}});
    } else if (role == "user") {
      add_user_message(*content, place + ".content", messages);
    } else if (role == "assistant") {
      add_assistant_message(*content, place + ".content", messages);
    } else {
      throw BadRequest(place + ".role",
                       fmt::format("{}.role: expected user or assistant, got {}", place, role));
    }
  }
  return messages;
}

Json tools_of(const Json& list) {
  if (!list.is_array()) throw BadRequest("tools", "tools: expected a list");
  Json tools = Json::array();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("tools[{}]", i);
    if (const Json* const type = member_of(list[i], "type"); type != nullptr && *type != "custom")
      throw BadRequest(place + ".type", place + ".type: expected custom, as no other tools are built");
    Json function{{"name", text_member(list[i], "name", place)}};
    if (const Json* const description = member_of(list[i], "description"))
      function["description"] = *description;
    if (const Json* const schema = member_of(list[i], "input_schema")) function["parameters"] = *schema;
    if (const Json* const strict = member_of(list[i], "strict")) function["strict"] = *strict;
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

void set_tool_choice(const Json& choice, Json& chat) {
  const std::string type = text_member(choice, "type", "tool_choice");
  if (type == "auto" || type == "none") {
    chat["tool_choice"] = type;
  } else if (type == "any") {
    chat["tool_choice"] = "required";
  } else if (type == "tool") {
    chat["tool_choice"] = {{"type", "function"},
                           {"function", {{"name", text_member(choice, "name", "tool_choice")}}}};
  } else {
    throw BadRequest("tool_choice.type",
                     fmt::format("tool_choice.type: expected auto, any, tool or none, got {}", type));
  }
  if (const Json* const one = member_of(choice, "disable_parallel_tool_use"))
    chat["parallel_tool_calls"] = !(one->is_boolean() && one->get<bool>());
}

void set_thinking(const Json& thinking, Json& chat) {
  const std::string type = text_member(thinking, "type", "thinking");
  if (type != "enabled" && type != "disabled" && type != "adaptive")
    throw BadRequest("thinking.type",
                     fmt::format("thinking.type: expected enabled, disabled or adaptive, got {}", type));
  if (!chat.contains("chat_template_kwargs")) chat["chat_template_kwargs"] = Json::object();
  if (chat["chat_template_kwargs"].is_object() && !chat["chat_template_kwargs"].contains("enable_thinking"))
    chat["chat_template_kwargs"]["enable_thinking"] = type != "disabled";
  if (const Json* const budget = member_of(thinking, "budget_tokens")) chat["max_reasoning_tokens"] = *budget;
}

std::string event_named(const char* name, Json data) {
  Json event{{"type", name}};
  event.update(data);
  return fmt::format("event: {}\ndata: {}\n\n", name,
                     event.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Json input_of(const std::string& arguments) {
  Json input = Json::parse(arguments, nullptr, false);
  return input.is_object() ? input : Json::object();  // a text that was cut has a beginning only
}

}  // namespace

Json chat_body_of_messages(const Json& body) {
  Json chat = Json::object();
  for (const auto& [name, value] : body.items()) {
    if (std::ranges::find(kSilent, name) != kSilent.end() || value.is_null()) continue;
    if (name == "messages" || name == "system") continue;
    if (name == "tools") {
      chat["tools"] = tools_of(value);
    } else if (name == "tool_choice") {
      set_tool_choice(value, chat);
    } else if (name == "stop_sequences") {
      chat["stop"] = value;
    } else if (name != "thinking") {
      chat[name] = value;  // others are treated as a chat's
    }
  }
  if (!chat.contains("max_tokens")) throw BadRequest("max_tokens", "max_tokens: expected a number, got none");
  if (const Json* const thinking = member_of(body, "thinking")) set_thinking(*thinking, chat);
  chat["messages"] = messages_of(body);
  return chat;
}

std::string messages_error(int status, const std::string& message) {
  const char* const type = status == 401   ? "authentication_error"
                           : status == 403 ? "permission_error"
                           : status == 404 ? "not_found_error"
                           : status == 413 ? "request_too_large"
                           : status == 429 ? "rate_limit_error"
                           : status == 503 ? "overloaded_error"
                           : status >= 500 ? "api_error"
                                           : "invalid_request_error";
  const Json body{{"type", "error"}, {"error", {{"type", type}, {"message", message}}}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

MessagesAnswer::MessagesAnswer(const ChatRequest& request, const ServedModel& model, const std::string& id)
    : ProtocolAnswer(1),
      id_(id),
      model_(model.name),
      stream_(request.stream),
      shows_reasoning_(request.shows_reasoning),
      format_(request.format),
      prompt_(request.texts[0].prompt),
      memory_(model.memory) {
  tokens_.prompt = request.prompt_tokens;
}

Json MessagesAnswer::usage() const {
  return {{"input_tokens", tokens_.prompt - tokens_.cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", tokens_.cached},
          {"output_tokens", tokens_.made}};
}

const char* MessagesAnswer::stop_reason() const {
  if (message_.ends_with_calls()) return "tool_use";
  if (message_.finish == Finish::length) return "max_tokens";
  return stop_word_.empty() ? "end_turn" : "stop_sequence";
}

std::string MessagesAnswer::begin() {
  if (!stream_) return "";
  return event_named("message_start", {{"message",
                                        {{"id", id_},
                                         {"type", "message"},
                                         {"role", "assistant"},
                                         {"model", model_},
                                         {"content", Json::array()},
                                         {"stop_reason", nullptr},
                                         {"stop_sequence", nullptr},
                                         {"usage", usage()}}}});
}

std::string MessagesAnswer::close_block() const {
  return blocks_.empty() ? "" : event_named("content_block_stop", {{"index", blocks_.size() - 1}});
}

std::string MessagesAnswer::add(Delta delta) {
  if (delta.kind == Kind::reasoning && !shows_reasoning_) return "";
  message_.apply(delta, format_, random_);
  std::string events;
  const bool is_new = delta.kind == Kind::call || (delta.kind != Kind::arguments &&
                                                   (blocks_.empty() || blocks_.back().kind != delta.kind));
  if (is_new) {
    events += close_block();
    blocks_.push_back({delta.kind, "", delta.id, delta.name});
    Json block =
        delta.kind == Kind::content ? Json{{"type", "text"}, {"text", ""}}
        : delta.kind == Kind::reasoning
            ? Json{{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}
            : Json{{"type", "tool_use"}, {"id", delta.id}, {"name", delta.name}, {"input", Json::object()}};
    events += event_named("content_block_start", {{"index", blocks_.size() - 1}, {"content_block", block}});
  }
  if (delta.kind == Kind::call) return events;
  blocks_.back().text += delta.text;
  Json change = delta.kind == Kind::content ? Json{{"type", "text_delta"}, {"text", delta.text}}
                : delta.kind == Kind::reasoning
                    ? Json{{"type", "thinking_delta"}, {"thinking", delta.text}}
                    : Json{{"type", "input_json_delta"}, {"partial_json", delta.text}};
  return events + event_named("content_block_delta", {{"index", blocks_.size() - 1}, {"delta", change}});
}

std::string MessagesAnswer::add(const Piece& piece) {
  count(piece);
  message_.made.insert(message_.made.end(), piece.made.begin(), piece.made.end());
  tokens_.made += piece.tokens;
  tokens_.reasoning += piece.reasoning_tokens;
  tokens_.cached = std::max(tokens_.cached, piece.cached_tokens);
  std::string events;
  for (const Delta& delta : piece.deltas) events += add(delta);
  if (piece.finish) {
    message_.finish = piece.finish;
    stop_word_ = piece.stop_word;
    problem_ = piece.problem;
    failed_ = piece.finish == Finish::failed;
    if (memory_ != nullptr && !failed_) memory_->keep(prompt_, message_.made);
  }
  return stream_ && !is_abandoned() ? events : "";
}

std::string MessagesAnswer::end() {
  const Json stop_sequence = stop_word_.empty() ? Json() : Json(stop_word_);
  if (stream_) {
    if (failed_) return "event: error\ndata: " + messages_error(500, problem_) + "\n";
    return close_block() +
           event_named("message_delta",
                       {{"delta", {{"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence}}},
                        {"usage", usage()}}) +
           event_named("message_stop", Json::object());
  }
  if (failed_) return messages_error(500, problem_);
  Json content = Json::array();
  for (const Block& block : blocks_) {
    content.push_back(block.kind == Kind::content ? Json{{"type", "text"}, {"text", block.text}}
                      : block.kind == Kind::reasoning
                          ? Json{{"type", "thinking"}, {"thinking", block.text}, {"signature", ""}}
                          : Json{{"type", "tool_use"},
                                 {"id", block.id},
                                 {"name", block.name},
                                 {"input", input_of(block.text)}});
  }
  const Json whole{{"id", id_},
                   {"type", "message"},
                   {"role", "assistant"},
                   {"model", model_},
                   {"content", content},
                   {"stop_reason", stop_reason()},
                   {"stop_sequence", stop_sequence},
                   {"usage", usage()}};
  return whole.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace switchyard::serve
