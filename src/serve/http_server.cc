#include "serve/http_server.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <set>

#include "core/error.h"
#include "core/messages.h"
#include "serve/growing_answer.h"
#include "serve/http/server.h"
#include "serve/page.h"
#include "serve/protocol/chat_answer.h"
#include "serve/protocol/completions.h"
#include "serve/protocol/messages.h"
#include "serve/protocol/messages_request.h"
#include "serve/protocol/responses_paths.h"
#include "serve/protocol/sampling_fields.h"
#include "serve/protocol/token_paths.h"
#include "serve/request_cost.h"

namespace switchyard::serve {
namespace {

using http::Access;
using http::Answer;
using http::Request;
using http::Response;
using nlohmann::json;

std::int64_t seconds_of_day() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::int64_t key_of(const Request& request) {
  return request.key ? static_cast<std::int64_t>(*request.key) : kNobody;
}

Response json_response(const json& body) {
  return {200, to_text(body) + "\n"};
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const http::Options& options, const ServedModel& model, Inbox& queue, const Statistics& statistics)
      : model_(model),
        has_keys_(!options.keys.empty()),
        queue_(queue),
        statistics_(statistics),
        started_(seconds_of_day()),
        server_(options, routes(), {{"/v1/messages", [](int status, const http::Problem& problem) {
                                       return messages_error(status, problem.message, problem.code);
                                     }}}) {}
  void start() { server_.start(); }
  int port() const { return server_.port(); }

 private:
  using Handler = Answer (Impl::*)(Request& request);
  struct Row {
    const char* method;
    const char* path;  // NAME at its end stands for any text
    Handler handler;
    Access access = Access::key;
  };
  static constexpr auto rows() {
    return std::to_array<Row>({{"GET", "/health", &Impl::health, Access::open},
                               {"GET", "/v1/models", &Impl::list_models},
                               {"GET", "/models", &Impl::list_models},
                               {"GET", "/v1/models/NAME", &Impl::show_model},
                               {"GET", "/metrics", &Impl::metrics, Access::monitoring},
                               {"GET", "/props", &Impl::properties},
                               {"POST", "/v1/completions", &Impl::complete},
                               {"POST", "/v1/chat/completions", &Impl::chat},
                               {"POST", "/chat/completions", &Impl::chat},
                               {"POST", "/v1/messages", &Impl::message},
                               {"POST", "/v1/messages/count_tokens", &Impl::count_tokens},
                               {"POST", "/v1/responses", &Impl::respond},
                               {"POST", "/v1/responses/input_tokens", &Impl::count_input},
                               {"GET", "/v1/responses/NAME", &Impl::show_response},
                               {"DELETE", "/v1/responses/NAME", &Impl::delete_response},
                               {"POST", "/tokenize", &Impl::tokens_of},
                               {"POST", "/detokenize", &Impl::text_of},
                               {"POST", "/apply-template", &Impl::prompt_of},
                               {"POST", "/v1/load_lora_adapter", &Impl::load_adapter},
                               {"POST", "/v1/unload_lora_adapter", &Impl::drop_adapter},
                               {"POST", "/v1/weights", &Impl::replace_weights},
                               {"POST", "/v1/embeddings", &Impl::embed},
                               {"GET", "/", &Impl::page, Access::open}});
  }
  std::vector<http::Route> routes() {
    std::vector<http::Route> routes;
    for (const Row& row : rows()) {
      if (row.path == std::string_view("/") && !model_.has_page) continue;
      const auto handler = [this, call = row.handler](Request& request) { return (this->*call)(request); };
      routes.push_back({row.method, row.path, handler, row.access, cost_of});
    }
    return routes;
  }

  Answer health(Request&) {
    if (queue_.is_closed()) return Response{503, "{\"status\":\"stopping\"}\n"};
    return Response{200, "{\"status\":\"ok\"}\n"};
  }

  Answer metrics(Request&) {
    return Response{200, metrics_text(statistics_, queue_.running(), queue_.waiting()),
                    "text/plain; version=0.0.4"};
  }

  json model() const {
    const ChatModel* const chat = model_.chat.get();
    return {{"id", model_.name},
            {"object", "model"},
            {"created", started_},
            {"owned_by", "switchyard"},
            {"max_model_len", model_.capacity},
            {"meta",
             {{"context_length", model_.capacity},
              {"chat_template", chat != nullptr},
              {"tool_format", chat == nullptr ? json() : json(chat::name_of(chat->format))},
              {"reasoning_format", chat == nullptr ? json() : json(reasoning_name(*chat))}}}};
  }
  static std::string_view reasoning_name(const ChatModel& chat) {
    return chat.reads_reasoning ? chat::name_of(chat.format) : "none";
  }
  json adapted_model(const TextAdapter& adapter) const {
    json adapted = model();
    adapted["id"] = adapter.name;
    adapted["parent"] = model_.name;
    adapted["meta"]["system_fingerprint"] = model_.weights->fingerprint(&adapter);
    return adapted;
  }
  Answer list_models(Request&) {
    json all = json::array({model()});
    for (const auto& adapter : model_.weights->adapters()) all.push_back(adapted_model(*adapter));
    return json_response({{"object", "list"}, {"data", all}});
  }
  Answer show_model(Request& request) {
    const json name = request.name;
    const std::shared_ptr<const TextAdapter> adapter = adapter_named(&name, model_);
    return json_response(adapter == nullptr ? model() : adapted_model(*adapter));
  }

  // Requests that change what all texts are made with: nobody may send them without a key.
  void require_keys() const {
    if (has_keys_) return;
    throw BadRequest("", "this server has no API keys: start it with --api-key-file to change its weights",
                     "invalid_api_key", 401);
  }
  static std::string text_field(Fields& fields, const char* name, const char* otherwise = nullptr) {
    const json* const value = fields.find(name);
    if (value == nullptr && otherwise != nullptr) return otherwise;
    if (value == nullptr || !value->is_string() || value->get_ref<const std::string&>().empty())
      throw BadRequest(name, fmt::format("{}: expected a text, got {}", name,
                                         value == nullptr ? "nothing" : Fields::shown(*value)));
    return value->get<std::string>();
  }
  Answer load_adapter(Request& request) {
    require_keys();
    const json body = parse_object(request.body);
    Fields fields(body);
    const std::string name = text_field(fields, "lora_name"), path = text_field(fields, "lora_path");
    const bool in_place = fields.boolean("load_inplace");
    fields.refuse_others();
    const auto adapter = model_.weights->load_adapter(name, path, in_place);
    return json_response({{"object", "lora_adapter"},
                          {"lora_name", name},
                          {"hash", adapter->hash},
                          {"system_fingerprint", model_.weights->fingerprint(adapter.get())}});
  }
  Answer drop_adapter(Request& request) {
    require_keys();
    const json body = parse_object(request.body);
    Fields fields(body);
    const std::string name = text_field(fields, "lora_name");
    fields.refuse_others();
    model_.weights->drop_adapter(name);
    return json_response({{"object", "lora_adapter"}, {"lora_name", name}, {"deleted", true}});
  }
  Answer replace_weights(Request& request) {
    require_keys();
    const json body = parse_object(request.body);
    Fields fields(body);
    const std::string path = text_field(fields, "path"), mode = text_field(fields, "mode", "finish"),
                      name = text_field(fields, "name", "");
    fields.refuse_others();
    constexpr std::array<std::pair<const char*, RunningTexts>, 3> kModes{{{"finish", RunningTexts::finish},
                                                                          {"continue", RunningTexts::go_on},
                                                                          {"abort", RunningTexts::abort}}};
    const auto found = std::ranges::find(kModes, mode, [](const auto& row) { return row.first; });
    if (found == kModes.end())
      throw BadRequest("mode",
                       fmt::format("mode: expected finish, continue or abort, got {}", Fields::shown(mode)));
    const ServedWeights::Replaced done = model_.weights->replace(path, found->second, name);
    return json_response({{"object", "weights"},
                          {"path", path},
                          {"model", done.adapter.empty() ? model_.name : done.adapter},
                          {"hash", done.hash},
                          {"system_fingerprint", done.fingerprint},
                          {"seconds", done.seconds}});
  }
  Answer properties(Request&) {
    json all = model()["meta"];
    all["version"] = SWITCHYARD_VERSION;
    all["model"] = model_.name;
    all["system_fingerprint"] = model_.weights->fingerprint();
    all["chat_template"] = model_.chat == nullptr ? json() : json(model_.chat->prompts.source().text);
    return json_response(all);
  }
  Answer page(Request&) {
    return Response{200,
                    std::string(page_html()),
                    "text/html; charset=utf-8",
                    {{"Content-Security-Policy", page_content_security_policy()},
                     {"X-Content-Type-Options", "nosniff"},
                     {"Referrer-Policy", "no-referrer"}}};
  }

  Answer complete(Request& request) {
    CompletionRequest wanted =
        parse_completion(request.body, model_, std::random_device()(), key_of(request));
    auto answer = std::make_unique<CompletionAnswer>(wanted, model_, new_id("cmpl"), seconds_of_day());
    return make_texts(request, std::move(wanted.texts), std::move(answer));
  }
  Answer chat(Request& request) {
    ChatRequest wanted =
        parse_chat(parse_chat_body(request.body), model_, std::random_device()(), key_of(request));
    auto answer = std::make_unique<ChatAnswer>(wanted, model_, new_id("chatcmpl"), seconds_of_day());
    return make_texts(request, std::move(wanted.texts), std::move(answer), ignored_header(wanted));
  }
  Answer message(Request& request) {
    ChatRequest wanted =
        parse_messages(parse_chat_body(request.body), model_, std::random_device()(), key_of(request));
    auto answer = std::make_unique<MessagesAnswer>(wanted, model_, new_id("msg"));
    return make_texts(request, std::move(wanted.texts), std::move(answer), ignored_header(wanted));
  }
  Answer count_tokens(Request& request) {
    const std::size_t tokens =
        count_tokens_of_messages(parse_chat_body(request.body), model_, key_of(request));
    return json_response({{"input_tokens", tokens}});
  }
  Answer tokens_of(Request& request) {
    return Response{200, tokenize(request.body, model_, key_of(request))};
  }
  Answer respond(Request& request) {
    ResponsesRequest asked =
        read_responses(parse_chat_body(request.body), responses_, request.key, new_hidden_id());
    ChatRequest wanted = chat_of_responses(asked, model_, std::random_device()(), key_of(request));
    auto answer = std::make_unique<ResponsesAnswer>(wanted, asked, model_, seconds_of_day(),
                                                    keeper_of(asked, responses_, request.key));
    return make_texts(request, std::move(wanted.texts), std::move(answer), ignored_header(wanted));
  }
  Answer count_input(Request& request) {
    const ResponsesRequest asked =
        read_responses(parse_chat_body(request.body), responses_, request.key, new_hidden_id());
    return json_response({{"object", "response.input_tokens"},
                          {"input_tokens", count_input_tokens(asked, model_, key_of(request))}});
  }
  Answer show_response(Request& request) {
    return Response{200, show_stored(request.name, request.query, responses_, request.key)};
  }
  Answer delete_response(Request& request) {
    return Response{200, delete_stored(request.name, responses_, request.key)};
  }
  Answer text_of(Request& request) { return Response{200, detokenize(request.body, model_)}; }
  Answer prompt_of(Request& request) {
    return Response{200, apply_template(request.body, model_, key_of(request))};
  }
  Answer embed(Request&) {
    return http::error_response(
        501,
        "embeddings: a decoder's hidden states are none unless it was trained for them, and "
        "this model was not",
        "", "not_supported");
  }

  // Names the fields that were passed over, and says so once in the log.
  http::Headers ignored_header(const ChatRequest& request) {
    if (request.ignored.empty()) return {};
    const std::string names = fmt::format("{}", fmt::join(request.ignored, ", "));
    const std::lock_guard lock(said_mutex_);
    for (const std::string& name : request.ignored) {
      if (said_.size() < kMostSaid && said_.insert(name).second)
        say("a chat's field is not known and ignored: {}", Fields::shown(name));  // escaped
    }
    return {{"x-switchyard-ignored", names.substr(0, kLongestHeader)}};
  }

  std::string new_id(const char* kind) { return fmt::format("{}-{:x}-{}", kind, started_, ++answers_); }

  // Ids of what is stored must not be guessed: whoever knows one may read it where there are no keys.
  static std::string new_hidden_id() {
    std::random_device random;
    return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
  }

  // Queues the texts, and answers with what becomes of them.
  Answer make_texts(const Request& request, std::vector<TextRequest> texts,
                    std::unique_ptr<ProtocolAnswer> answer, http::Headers headers = {}) {
    CHECK(answer->texts() == texts.size(), "{} texts for an answer of {}", texts.size(), answer->texts());
    const auto pieces = std::make_shared<Pieces>();
    std::vector<WantedText> wanted;
    for (TextRequest& text : texts) wanted.push_back({std::move(text), pieces});
    switch (queue_.submit(std::move(wanted), key_of(request))) {
      case Inbox::Submitted::yes:
        break;
      case Inbox::Submitted::too_many_of_key:
        return refusal(429, "this key has as many texts that run or wait as it may: try again",
                       "rate_limit_exceeded");
      case Inbox::Submitted::full:
        return refusal(503, "no room for more texts to wait, or stopping: try again", "overloaded");
    }
    return std::make_shared<GrowingAnswer>(std::move(answer), pieces, std::move(headers));
  }
  static Response refusal(int status, const char* message, const char* code) {
    Response refusal = http::error_response(status, message, "", code);
    refusal.headers.push_back({"Retry-After", "1"});
    return refusal;
  }

  static constexpr std::size_t kMostSaid = 100, kLongestHeader = 2000;
  const ServedModel& model_;
  const bool has_keys_;
  Inbox& queue_;
  const Statistics& statistics_;
  const std::int64_t started_;
  std::atomic<std::int64_t> answers_{0};
  std::mutex said_mutex_;
  std::set<std::string> said_;  // unknown fields that the log has named
  StoredResponses responses_;   // of all keys
  http::Server server_;         // last: its handlers use all above
};

HttpServer::HttpServer(const http::Options& options, const ServedModel& model, Inbox& queue,
                       const Statistics& statistics)
    : impl_(std::make_unique<Impl>(options, model, queue, statistics)) {}

HttpServer::~HttpServer() = default;

void HttpServer::start() {
  impl_->start();
}

int HttpServer::port() const {
  return impl_->port();
}

}  // namespace switchyard::serve
