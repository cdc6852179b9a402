#include "serve/protocol/chat_answer.h"

#include <fmt/format.h>

#include "tokenizer/base64.h"
#include "tokenizer/unicode.h"

namespace switchyard::serve {
namespace {

using chat::Delta;
using chat::Json;

std::string chat_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const char* finish_word(const ChatMessage& message) {
  if (message.ends_with_calls()) return "tool_calls";
  return message.finish == Finish::length    ? "length"
         : message.finish == Finish::failed  ? "error"
         : message.finish == Finish::aborted ? "abort"
                                             : "stop";
}

Json delta_json(const Delta& delta) {
  switch (delta.kind) {
    case Delta::Kind::content:
      return {{"content", delta.text}};
    case Delta::Kind::reasoning:
      return {{"reasoning_content", delta.text}, {"reasoning", delta.text}};
    case Delta::Kind::call:
      return {{"tool_calls", Json::array({{{"index", delta.index},
                                           {"id", delta.id},
                                           {"type", "function"},
                                           {"function", {{"name", delta.name}, {"arguments", ""}}}}})}};
    case Delta::Kind::arguments:
      break;
  }
  return {{"tool_calls", Json::array({{{"index", delta.index}, {"function", {{"arguments", delta.text}}}}})}};
}

Json failure_json(const std::string& problem) {
  return {{"error",
           {{"message", problem}, {"type", "server_error"}, {"param", nullptr}, {"code", "model_failed"}}}};
}

Json bytes_json(const std::string& bytes) {
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return list;
}

}  // namespace

std::string bytes_of_token(const Tokenizer& tokenizer, std::int32_t id) {
  if (std::optional<std::string> bytes = tokenizer.token_bytes(id)) return *bytes;
  return tokenizer.decode_all(std::span(&id, 1));
}

std::string shown_token(const Tokenizer& tokenizer, std::int32_t id) {
  const std::string bytes = bytes_of_token(tokenizer, id);
  if (repaired_utf8(bytes) == bytes) return bytes;
  std::string shown;
  for (const char byte : bytes) shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return shown;
}

ChatAnswer::ChatAnswer(const ChatRequest& request, const ServedModel& model, const std::string& id,
                       std::int64_t created)
    : ProtocolAnswer(request.texts.size()),
      model_(model),
      frame_{{"id", id},
             {"object", request.stream ? "chat.completion.chunk" : "chat.completion"},
             {"created", created},
             {"model", model.name_with(request.texts[0].adapter.get())},
             {"system_fingerprint", model.weights->fingerprint(request.texts[0].adapter.get())}},
      stream_(request.stream),
      usage_at_end_(request.usage_at_end),
      usage_in_all_(request.usage_in_all),
      shows_reasoning_(request.shows_reasoning),
      with_log_probs_(request.log_probs),
      with_token_ids_(request.texts[0].returns_token_ids),
      format_(request.format),
      domain_(request.texts[0].domain),
      prompt_(request.texts[0].prompt),
      messages_(request.texts.size()),
      log_probs_(request.texts.size(), Json::array()),
      token_ids_(request.texts.size()),
      routing_(request.texts.size()) {
  tokens_.prompt = request.prompt_tokens;
}

Json ChatAnswer::event(std::size_t choice, Json delta) const {
  Json event = frame_;
  event["choices"] = Json::array(
      {{{"index", choice}, {"delta", std::move(delta)}, {"logprobs", nullptr}, {"finish_reason", nullptr}}});
  if (usage_in_all_) {
    event["usage"] = usage();
  } else if (usage_at_end_) {
    event["usage"] = nullptr;
  }
  return event;
}

std::string ChatAnswer::text_of(Json event) const {
  return "data: " + chat_text(event) + "\n\n";
}

std::string ChatAnswer::begin() {
  std::string events;
  for (std::size_t i = 0; stream_ && i < messages_.size(); ++i) {
    Json first = event(i, {{"role", "assistant"}, {"content", ""}});
    if (with_token_ids_ && i == 0) first["prompt_token_ids"] = prompt_;
    events += text_of(std::move(first));
  }
  return events;
}

Json ChatAnswer::log_prob(const TokenLogProb& token) const {
  const Tokenizer& tokenizer = *model_.tokenizer;
  const auto named = [&](std::int32_t id, double log_prob) {
    return Json{{"token", shown_token(tokenizer, id)},
                {"logprob", log_prob},
                {"bytes", bytes_json(bytes_of_token(tokenizer, id))}};
  };
  Json shown = named(token.token, token.log_prob.value_or(0));
  shown["top_logprobs"] = Json::array();
  for (std::size_t i = 0; i < token.most_probable.size(); ++i)
    shown["top_logprobs"].push_back(named(token.most_probable_tokens[i], token.most_probable[i].second));
  return shown;
}

std::string ChatAnswer::add(const Piece& piece) {
  count(piece);
  ChatMessage& message = messages_[piece.choice];
  message.made.insert(message.made.end(), piece.made.begin(), piece.made.end());
  tokens_.made += piece.tokens;
  tokens_.reasoning += piece.reasoning_tokens;
  tokens_.cached = std::max(tokens_.cached, piece.cached_tokens);
  Json log_probs = Json::array();
  for (const TokenLogProb& token : piece.log_probs) log_probs.push_back(log_prob(token));
  std::vector<std::int32_t> ids = piece.made;
  if (piece.end) ids.push_back(*piece.end);
  if (!with_token_ids_) ids.clear();
  std::string events;
  const auto send = [&](Json delta) {
    if (!stream_) return;
    Json sent = event(piece.choice, std::move(delta));
    if (!ids.empty()) sent["choices"][0]["token_ids"] = std::exchange(ids, {});
    if (!log_probs.empty()) {
      sent["choices"][0]["logprobs"] = {{"content", std::exchange(log_probs, Json::array())},
                                        {"refusal", nullptr}};
    }
    events += text_of(std::move(sent));
  };
  if (!stream_) token_ids_[piece.choice].insert(token_ids_[piece.choice].end(), ids.begin(), ids.end());
  if (!stream_ && with_log_probs_) {
    for (Json& token : log_probs) log_probs_[piece.choice].push_back(std::move(token));
  }
  for (Delta delta : piece.deltas) {
    message.apply(delta, format_, random_);
    if (delta.kind != Delta::Kind::reasoning || shows_reasoning_) send(delta_json(delta));
  }
  if (stream_ && (!log_probs.empty() || !ids.empty())) send(Json::object());
  if (!piece.finish || is_abandoned()) return is_abandoned() ? "" : events;
  message.finish = piece.finish;
  message.problem = piece.problem;
  routing_[piece.choice] = to_base64(piece.routing);
  if (model_.memory != nullptr && piece.finish != Finish::failed)
    model_.memory->keep(domain_, prompt_, message.made);
  if (piece.finish == Finish::failed) {
    failed_ = true;
    if (stream_) events += text_of(failure_json(piece.problem));
    return events;
  }
  if (stream_) {
    Json last = event(piece.choice, Json::object());
    last["choices"][0]["finish_reason"] = finish_word(message);
    if (!piece.routing.empty()) last["choices"][0]["routed_experts"] = routing_[piece.choice];
    events += text_of(std::move(last));
  }
  return events;
}

Json ChatAnswer::usage() const {
  return {{"prompt_tokens", tokens_.prompt},
          {"completion_tokens", tokens_.made},
          {"total_tokens", tokens_.prompt + tokens_.made},
          {"prompt_tokens_details", {{"cached_tokens", tokens_.cached}}},
          {"completion_tokens_details", {{"reasoning_tokens", tokens_.reasoning}}}};
}

Json ChatAnswer::message_json(const ChatMessage& message) const {
  Json shown{{"role", "assistant"}};
  shown["content"] = message.content.empty() && !message.calls.empty() ? Json() : Json(message.content);
  if (!message.reasoning.empty() && shows_reasoning_) {
    shown["reasoning_content"] = message.reasoning;
    shown["reasoning"] = message.reasoning;
  }
  for (const ChatMessage::Call& call : message.calls) {
    shown["tool_calls"].push_back({{"id", call.id},
                                   {"type", "function"},
                                   {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  shown["refusal"] = nullptr;
  return shown;
}

std::string ChatAnswer::end() {
  if (stream_) {
    Json last = frame_;
    last["choices"] = Json::array();
    last["usage"] = usage();
    return (usage_at_end_ && !failed_ ? text_of(std::move(last)) : "") + "data: [DONE]\n\n";
  }
  for (const ChatMessage& message : messages_) {
    if (message.finish == Finish::failed) return chat_text(failure_json(message.problem)) + "\n";
  }
  Json whole = frame_;
  whole["choices"] = Json::array();
  for (std::size_t i = 0; i < messages_.size(); ++i) {
    whole["choices"].push_back(
        {{"index", i},
         {"message", message_json(messages_[i])},
         {"logprobs", with_log_probs_ ? Json{{"content", log_probs_[i]}, {"refusal", nullptr}} : Json()},
         {"finish_reason", finish_word(messages_[i])}});
    Json& choice = whole["choices"].back();
    if (with_token_ids_) choice["token_ids"] = token_ids_[i];
    if (!routing_[i].empty()) choice["routed_experts"] = routing_[i];
  }
  if (with_token_ids_) whole["prompt_token_ids"] = prompt_;
  whole["usage"] = usage();
  return chat_text(whole) + "\n";
}

}  // namespace switchyard::serve
