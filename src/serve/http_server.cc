#include "serve/http_server.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <random>

#include "serve/growing_texts.h"
#include "serve/http/server.h"
#include "serve/protocol/completions.h"

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

Response json_response(const json& body) {
  return {200, to_text(body) + "\n"};
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const http::Options& options, const ServedModel& model, RequestQueue& queue,
       const Statistics& statistics)
      : model_(model),
        queue_(queue),
        statistics_(statistics),
        started_(seconds_of_day()),
        server_(options, routes()) {}
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
                               {"GET", "/v1/models/NAME", &Impl::show_model},
                               {"GET", "/metrics", &Impl::metrics, Access::monitoring},
                               {"POST", "/v1/completions", &Impl::complete}});
  }
  std::vector<http::Route> routes() {
    std::vector<http::Route> routes;
    for (const Row& row : rows()) {
      const auto handler = [this, call = row.handler](Request& request) { return (this->*call)(request); };
      routes.push_back({row.method, row.path, handler, row.access});
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
    return {{"id", model_.name},
            {"object", "model"},
            {"created", started_},
            {"owned_by", "switchyard"},
            {"max_model_len", model_.capacity}};
  }
  Answer list_models(Request&) {
    return json_response({{"object", "list"}, {"data", json::array({model()})}});
  }
  Answer show_model(Request& request) {
    if (request.name == model_.name) return json_response(model());
    throw BadRequest("model", fmt::format("model: expected {}, got {}", model_.name, request.name),
                     "model_not_found", 404);
  }

  Answer complete(Request& request) {
    CompletionRequest wanted = parse_completion(request.body, model_, std::random_device()());
    auto answer = std::make_unique<CompletionAnswer>(wanted, model_, new_id("cmpl"), seconds_of_day());
    return make_texts(std::move(wanted.texts), std::move(answer));
  }

  std::string new_id(const char* kind) { return fmt::format("{}-{:x}-{}", kind, started_, ++answers_); }

  // Queues the texts, and answers with what becomes of them.
  Answer make_texts(std::vector<TextRequest> texts, std::unique_ptr<ProtocolAnswer> answer) {
    const auto pieces = std::make_shared<Pieces>();
    std::vector<WantedText> wanted;
    for (TextRequest& text : texts) wanted.push_back({std::move(text), pieces});
    if (queue_.submit(std::move(wanted))) return std::make_shared<GrowingTexts>(std::move(answer), pieces);
    Response refusal =
        http::error_response(503, "no room for more texts to wait, or stopping: try again", "", "overloaded");
    refusal.headers.push_back({"Retry-After", "1"});
    return refusal;
  }

  const ServedModel& model_;
  RequestQueue& queue_;
  const Statistics& statistics_;
  const std::int64_t started_;
  std::atomic<std::int64_t> answers_{0};
  http::Server server_;  // last: its handlers use all above
};

HttpServer::HttpServer(const http::Options& options, const ServedModel& model, RequestQueue& queue,
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
