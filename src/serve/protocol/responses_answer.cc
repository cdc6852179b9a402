#include "serve/protocol/responses_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "serve/http/message.h"
#include "serve/protocol/chat_answer.h"

namespace switchyard::serve {

using chat::Delta;
using chat::Json;

ResponsesAnswer::ResponsesAnswer(const ChatRequest& chat, const ResponsesRequest& request,
                                 const ServedModel& model, std::int64_t created, Keep keep)
    : ProtocolAnswer(1),
      model_(model),
      stream_(chat.stream),
      shows_reasoning_(chat.shows_reasoning),
      seals_reasoning_(request.seals_reasoning),
      format_(chat.format),
      domain_(chat.texts[0].domain),
      prompt_(chat.texts[0].prompt),
      created_(created),
      shown_(request.shown),
      id_(request.id),
      keep_(std::move(keep)),
      ids_(request.ids) {
  tokens_.prompt = chat.prompt_tokens;
}

std::string ResponsesAnswer::event(const char* type, Json fields) {
  if (!stream_) return "";
  Json event{{"type", type}, {"sequence_number", events_++}};
  event.update(fields);
  return fmt::format("event: {}\ndata: {}\n\n", type,
                     event.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Json ResponsesAnswer::usage() const {
  return {{"input_tokens", tokens_.prompt},
          {"input_tokens_details", {{"cached_tokens", tokens_.cached}, {"cache_write_tokens", 0}}},
          {"output_tokens", tokens_.made},
          {"output_tokens_details", {{"reasoning_tokens", tokens_.reasoning}}},
          {"total_tokens", tokens_.prompt + tokens_.made}};
}

Json ResponsesAnswer::response(const char* status) const {
  const bool is_cut = status == std::string_view("incomplete");
  const bool goes_on = status == std::string_view("in_progress");
  Json whole{{"id", id_}, {"object", "response"}, {"created_at", created_}, {"status", status}};
  whole["completed_at"] = goes_on || failed_ ? Json() : Json(std::time(nullptr));
  whole["error"] = failed_ ? Json{{"code", "server_error"}, {"message", message_.problem}} : Json();
  whole["incomplete_details"] = is_cut ? Json{{"reason", "max_output_tokens"}} : Json();
  whole["output"] = output_;
  whole["usage"] = goes_on || failed_ ? Json() : usage();
  whole.update(shown_);
  return whole;
}

std::string ResponsesAnswer::begin() {
  const Json begun{{"response", response("in_progress")}};
  const std::string created = event("response.created", begun);
  return created + event("response.in_progress", begun);
}

Json ResponsesAnswer::place() const {
  return {{"item_id", output_.back()["id"]}, {"output_index", output_.size() - 1}};
}

Json ResponsesAnswer::text_part(const std::string& text) const {
  if (kind_ == Kind::reasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", log_probs_}};
}

Json ResponsesAnswer::log_prob(const TokenLogProb& token) const {
  const auto named = [&](std::int32_t id, double log_prob) {
    Json bytes = Json::array();
    for (const char byte : bytes_of_token(*model_.tokenizer, id))
      bytes.push_back(static_cast<unsigned char>(byte));
    return Json{{"token", shown_token(*model_.tokenizer, id)}, {"logprob", log_prob}, {"bytes", bytes}};
  };
  Json shown = named(token.token, token.log_prob.value_or(0));
  shown["top_logprobs"] = Json::array();
  for (std::size_t i = 0; i < token.most_probable.size(); ++i)
    shown["top_logprobs"].push_back(named(token.most_probable_tokens[i], token.most_probable[i].second));
  return shown;
}

std::string ResponsesAnswer::open_item(const Delta& delta) {
  std::string events = close_item("completed");
  kind_ = delta.kind;
  open_ = true;
  text_.clear();
  log_probs_ = Json::array();
  Json item{{"status", "in_progress"}};
  if (kind_ == Kind::call) {
    item.update(Json{{"id", ids_.next("fc")},
                     {"type", "function_call"},
                     {"call_id", delta.id},
                     {"name", delta.name},
                     {"arguments", ""}});
  } else if (kind_ == Kind::reasoning) {
    item.update(Json{{"id", ids_.next("rs")},
                     {"type", "reasoning"},
                     {"summary", Json::array()},
                     {"content", Json::array()},
                     {"encrypted_content", nullptr}});
  } else {
    item.update(Json{
        {"id", ids_.next("msg")}, {"type", "message"}, {"role", "assistant"}, {"content", Json::array()}});
  }
  output_.push_back(item);
  events += event("response.output_item.added", {{"output_index", output_.size() - 1}, {"item", item}});
  if (kind_ == Kind::call) return events;
  Json fields = place();
  fields.update(Json{{"content_index", 0}, {"part", text_part("")}});
  return events + event("response.content_part.added", std::move(fields));
}

std::string ResponsesAnswer::close_item(const char* status) {
  if (!open_) return "";
  open_ = false;
  std::string events;
  Json& item = output_.back();
  item["status"] = status;
  Json fields = place();
  if (kind_ == Kind::call) {
    item["arguments"] = text_;
    fields.update(Json{{"name", item["name"]}, {"arguments", text_}});
    events = event("response.function_call_arguments.done", std::move(fields));
  } else {
    const Json part = text_part(text_);
    item["content"].push_back(part);
    fields["content_index"] = 0;
    Json done = fields;
    done["text"] = text_;
    if (kind_ == Kind::content) done["logprobs"] = log_probs_;
    if (kind_ == Kind::reasoning && seals_reasoning_) item["encrypted_content"] = sealed_reasoning(text_);
    events = event(kind_ == Kind::content ? "response.output_text.done" : "response.reasoning_text.done",
                   std::move(done));
    fields["part"] = part;
    events += event("response.content_part.done", std::move(fields));
  }
  return events + event("response.output_item.done", {{"output_index", output_.size() - 1}, {"item", item}});
}

std::string ResponsesAnswer::add(Delta delta) {
  if (delta.kind == Kind::reasoning && !shows_reasoning_) return "";
  message_.apply(delta, format_, random_);
  std::string events;
  const bool is_new =
      delta.kind == Kind::call || (delta.kind != Kind::arguments && (!open_ || kind_ != delta.kind));
  if (is_new) events = open_item(delta);
  if (delta.kind == Kind::call) return events;
  text_ += delta.text;
  Json fields = place();
  if (delta.kind != Kind::arguments) fields["content_index"] = 0;
  fields["delta"] = delta.text;
  if (delta.kind == Kind::content) {
    fields["logprobs"] = waiting_log_probs_;
    log_probs_.insert(log_probs_.end(), waiting_log_probs_.begin(), waiting_log_probs_.end());
    waiting_log_probs_ = Json::array();
  }
  return events + event(delta.kind == Kind::content     ? "response.output_text.delta"
                        : delta.kind == Kind::reasoning ? "response.reasoning_text.delta"
                                                        : "response.function_call_arguments.delta",
                        std::move(fields));
}

std::string ResponsesAnswer::add(const Piece& piece) {
  count(piece);
  message_.made.insert(message_.made.end(), piece.made.begin(), piece.made.end());
  tokens_.made += piece.tokens;
  tokens_.reasoning += piece.reasoning_tokens;
  tokens_.cached = std::max(tokens_.cached, piece.cached_tokens);
  // Only the content's tokens are shown. Those of reasoning come first; markers are special,
  // or followed by no content.
  for (std::size_t i = static_cast<std::size_t>(piece.reasoning_tokens); i < piece.log_probs.size(); ++i) {
    if (model_.tokenizer->token_bytes(piece.log_probs[i].token))
      waiting_log_probs_.push_back(log_prob(piece.log_probs[i]));
  }
  std::string events;
  for (const Delta& delta : piece.deltas) {
    if (delta.kind == Kind::call || delta.kind == Kind::arguments) waiting_log_probs_ = Json::array();
    events += add(delta);
  }
  if (piece.finish) {
    message_.finish = piece.finish;
    message_.problem = piece.problem;
    failed_ = piece.finish == Finish::failed;
    if (model_.memory != nullptr && !failed_) model_.memory->keep(domain_, prompt_, message_.made);
  }
  return stream_ && !is_abandoned() ? events : "";
}

std::string ResponsesAnswer::end() {
  if (failed_) {
    if (!stream_) return http::error_response(500, message_.problem, "", "model_failed").body;
    return event("response.failed", {{"response", response("failed")}});
  }
  const bool is_cut = texts::is_cut(message_.finish);
  std::string events;
  // An answer without a word is a message, too: the conversation goes on behind it.
  if (!is_cut && message_.content.empty() && message_.calls.empty()) events += open_item({Kind::content, ""});
  events += close_item(is_cut ? "incomplete" : "completed");
  const Json whole = response(is_cut ? "incomplete" : "completed");
  const std::string text = whole.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (keep_) keep_(text, output_);
  if (!stream_) return text + "\n";
  return events + event(is_cut ? "response.incomplete" : "response.completed", {{"response", whole}});
}

}  // namespace switchyard::serve
