#include "serve/protocol/messages.h"

#include <fmt/format.h>

#include <algorithm>

namespace switchyard::serve {
namespace {

using chat::Delta;
using chat::Json;
using Kind = chat::Delta::Kind;

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

std::string messages_error(int status, const std::string& message, const std::string& code) {
  const char* const type = status == 401   ? "authentication_error"
                           : status == 403 ? "permission_error"
                           : status == 404 ? "not_found_error"
                           : status == 413 ? "request_too_large"
                           : status == 429 ? "rate_limit_error"
                           : status == 503 ? "overloaded_error"
                           : status == 504 ? "timeout_error"
                           : status >= 500 ? "api_error"
                                           : "invalid_request_error";
  Json body{{"type", "error"}, {"error", {{"type", type}, {"message", message}}}};
  if (code == kNoThreads) body["error"]["details"] = {{"error_code", code}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

MessagesAnswer::MessagesAnswer(const ChatRequest& request, const ServedModel& model, const std::string& id)
    : ProtocolAnswer(request.texts.size()),
      id_(id),
      model_(model.name_with(request.texts[0].adapter.get())),
      stream_(request.stream),
      shows_reasoning_(request.shows_reasoning),
      format_(request.format),
      domain_(request.texts[0].domain),
      prompt_(request.texts[0].prompt),
      memory_(model.memory) {
  CHECK(request.texts.size() == 1, "an answer of /v1/messages tells one text, not {}", request.texts.size());
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
  if (is_cut(message_.finish)) return "max_tokens";
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
    if (memory_ != nullptr && !failed_) memory_->keep(domain_, prompt_, message_.made);
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
