#include "serve/http_server.h"

#include <fmt/format.h>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "core/error.h"

namespace switchyard::serve {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestBody = std::size_t{4} << 20;
constexpr double kLookUpSeconds = 0.2;  // after which it is seen that a client has gone
constexpr const char* kJson = "application/json";
constexpr const char* kEndpoints =
    "GET /health, GET /v1/models, GET /v1/models/NAME, GET /metrics, POST /v1/completions";

std::string to_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// What an answer needs for as long as it is being written.
struct Answering {
  CompletionRequest request;
  CompletionAnswer answer;
  std::shared_ptr<Pieces> pieces = std::make_shared<Pieces>();
};

bool write(httplib::DataSink& sink, const std::string& text) {
  return sink.write(text.data(), text.size());
}

bool write_event(httplib::DataSink& sink, const json& value) {
  return write(sink, fmt::format("data: {}\n\n", to_text(value)));
}

// Writes the answer as it grows, or at its end. False, and the connection ends before the answer does, when
// the client is gone or the server gave the text up.
bool write_answer(Answering& a, httplib::DataSink& sink) {
  const bool stream = a.request.stream;
  if (stream) {
    for (const json& part : a.answer.beginnings()) {
      if (!write_event(sink, part)) return false;
    }
  }
  while (!a.answer.is_finished()) {
    for (const Piece& piece : a.pieces->take(kLookUpSeconds)) {
      const json part = a.answer.add(piece);
      if (stream && !part.is_null() && !a.answer.is_abandoned() && !write_event(sink, part)) return false;
    }
    if (a.answer.is_abandoned() || !sink.is_writable()) return false;
  }
  if (!stream) {
    if (!write(sink, to_text(a.answer.whole()) + "\n")) return false;
  } else {
    if (a.request.usage_at_end && !write_event(sink, a.answer.usage())) return false;
    if (!write(sink, "data: [DONE]\n\n")) return false;
  }
  sink.done();
  return true;
}

void answer_while_it_grows(httplib::Response& response, const std::shared_ptr<Answering>& answering) {
  response.set_chunked_content_provider(
      answering->request.stream ? "text/event-stream" : kJson,
      [answering](std::size_t, httplib::DataSink& sink) { return write_answer(*answering, sink); },
      [answering](bool) { answering->pieces->abandon(); });  // what is finished does not notice
}

void answer_error(httplib::Response& response, int status, const std::string& message,
                  const std::string& type, const std::string& field = "", const std::string& code = "") {
  response.status = status;
  response.set_content(to_text(error_json(message, type, field, code)) + "\n", kJson);
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const Address& address, const ServedModel& model, Batcher& batcher, const ExpertRows& experts,
       int connections)
      : model_(model), batcher_(batcher), experts_(experts), started_(seconds_of_day()) {
    server_.new_task_queue = [connections] {
      return new httplib::ThreadPool(static_cast<std::size_t>(connections));
    };
    server_.set_payload_max_length(kLongestBody);
    server_.set_keep_alive_timeout(2);
    server_.set_keep_alive_max_count(1000);
    server_.set_tcp_nodelay(true);
    server_.set_socket_options([](auto socket) {  // not for others to listen on, too
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server_.Get("/health", [this](const auto&, auto& response) { health(response); });
    server_.Get("/v1/models", [this](const auto&, auto& response) { models(response); });
    server_.Get("/v1/models/(.+)",
                [this](const auto& request, auto& response) { model_of(request.matches[1], response); });
    server_.Get("/metrics", [this](const auto&, auto& response) {
      response.set_content(metrics_text(batcher_.counts(), experts_.layers()), "text/plain; version=0.0.4");
    });
    // Read here, since the library takes no more than 8 KiB of what curl calls a form.
    server_.Post("/v1/completions", [this](const httplib::Request& request, httplib::Response& response,
                                           const httplib::ContentReader& content) {
      if (request.is_multipart_form_data()) {
        answer_error(response, 400, "the body is not JSON but parts of a form", "invalid_request_error");
        return;
      }
      std::string body;
      const bool whole = content([&](const char* data, std::size_t size) {
        body.append(data, size);
        return true;
      });
      if (whole) complete(body, response);
    });
    server_.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
      if (!response.body.empty()) return;
      answer_error(response, response.status,
                   response.status == 404
                       ? fmt::format("{} {}: expected one of {}", request.method, request.path, kEndpoints)
                       : fmt::format("{} {}: status {}", request.method, request.path, response.status),
                   "invalid_request_error");
    });
    port_ = address.port;
    const bool bound = address.port == 0 ? (port_ = server_.bind_to_any_port(address.host)) > 0
                                         : server_.bind_to_port(address.host, address.port);
    if (!bound)
      fail_usage("[serve] cannot listen on {} port {}: expected an address of this machine and a free port",
                 address.host, address.port);
  }
  ~Impl() {
    if (!listener_.joinable()) return;
    server_.stop();
    listener_.join();
  }
  void start() {
    listener_ = std::thread([this] {
      if (!server_.listen_after_bind()) failed_ = true;
    });
    while (!server_.is_running() && !failed_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (failed_) fail_runtime("[serve] port {} cannot be listened on any more", port_);
  }
  int port() const { return port_; }

 private:
  static std::int64_t seconds_of_day() {
    return std::chrono::duration_cast<std::chrono::seconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }

  void health(httplib::Response& response) const {
    if (batcher_.is_closed()) {
      response.status = 503;
      response.set_content("{\"status\":\"stopping\"}\n", kJson);
    } else {
      response.set_content("{\"status\":\"ok\"}\n", kJson);
    }
  }

  json model() const {
    return {{"id", model_.name},
            {"object", "model"},
            {"created", started_},
            {"owned_by", "switchyard"},
            {"max_model_len", model_.capacity}};
  }
  void models(httplib::Response& response) const {
    response.set_content(to_text({{"object", "list"}, {"data", json::array({model()})}}) + "\n", kJson);
  }
  void model_of(const std::string& id, httplib::Response& response) const {
    if (id == model_.name) {
      response.set_content(to_text(model()) + "\n", kJson);
    } else {
      answer_error(response, 404, fmt::format("model: expected {}, got {}", model_.name, id),
                   "invalid_request_error", "model", "model_not_found");
    }
  }

  void complete(const std::string& body, httplib::Response& response) {
    std::shared_ptr<Answering> answering;
    try {
      CompletionRequest request = parse_completion(body, model_, std::random_device()());
      const std::string id = fmt::format("cmpl-{:x}-{}", started_, ++answers_);
      CompletionAnswer answer(request, model_, id, seconds_of_day());
      answering = std::make_shared<Answering>(Answering{std::move(request), std::move(answer)});
    } catch (const BadRequest& error) {
      answer_error(response, 400, error.what(), "invalid_request_error", error.field);
      return;
    }
    std::vector<WantedText> texts;
    for (const TextRequest& text : answering->request.texts) texts.push_back({text, answering->pieces});
    if (!batcher_.submit(std::move(texts))) {
      response.set_header("Retry-After", "1");
      answer_error(response, 503, "no room for more texts to wait, or stopping: try again",
                   "overloaded_error");
      return;
    }
    answer_while_it_grows(response, answering);
  }

  const ServedModel& model_;
  Batcher& batcher_;
  const ExpertRows& experts_;
  const std::int64_t started_;
  std::atomic<std::int64_t> answers_{0};
  int port_ = 0;
  httplib::Server server_;
  std::atomic<bool> failed_{false};
  std::thread listener_;
};

HttpServer::HttpServer(const Address& address, const ServedModel& model, Batcher& batcher,
                       const ExpertRows& experts, int connections)
    : impl_(std::make_unique<Impl>(address, model, batcher, experts, connections)) {}

HttpServer::~HttpServer() = default;

void HttpServer::start() {
  impl_->start();
}

int HttpServer::port() const {
  return impl_->port();
}

}  // namespace switchyard::serve
