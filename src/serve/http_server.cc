#include "serve/http_server.h"

#include <fmt/format.h>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <random>
#include <span>
#include <string_view>
#include <thread>

#include "core/error.h"
#include "serve/protocol/completions.h"

namespace switchyard::serve {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestBody = std::size_t{4} << 20;
constexpr double kLookUpSeconds = 0.2;  // between two looks whether the client is still there
constexpr const char* kJson = "application/json";

// An answer that is being written.
struct Answering {
  CompletionAnswer answer;
  std::shared_ptr<Pieces> pieces = std::make_shared<Pieces>();
};

bool write(httplib::DataSink& sink, const std::string& text) {
  return text.empty() || sink.write(text.data(), text.size());
}

// Writes the answer as it grows. Returns false, and the connection ends before the answer does, when the
// client is gone or the server gave the texts up.
bool write_answer(Answering& a, httplib::DataSink& sink) {
  if (!write(sink, a.answer.begin())) return false;
  while (!a.answer.is_finished()) {
    for (const Piece& piece : a.pieces->take(kLookUpSeconds)) {
      if (!write(sink, a.answer.add(piece))) return false;
    }
    if (a.answer.is_abandoned() || !sink.is_writable()) return false;
  }
  if (!write(sink, a.answer.end())) return false;
  sink.done();
  return true;
}

void write_while_it_grows(httplib::Response& response, const std::shared_ptr<Answering>& answering) {
  response.set_chunked_content_provider(
      answering->answer.content_type(),
      [answering](std::size_t, httplib::DataSink& sink) { return write_answer(*answering, sink); },
      [answering](bool) { answering->pieces->abandon(); });  // texts that are over do not notice
}

void answer_error(httplib::Response& response, int status, const std::string& message,
                  const std::string& type, const std::string& field = "", const std::string& code = "") {
  response.status = status;
  response.set_content(to_text(error_json(message, type, field, code)) + "\n", kJson);
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const Address& address, const ServedModel& model, RequestQueue& queue, const Statistics& statistics,
       int connections)
      : model_(model), queue_(queue), statistics_(statistics), started_(seconds_of_day()) {
    server_.new_task_queue = [connections] {
      return new httplib::ThreadPool(static_cast<std::size_t>(connections));
    };
    server_.set_payload_max_length(kLongestBody);
    server_.set_keep_alive_timeout(2);
    server_.set_keep_alive_max_count(1000);
    server_.set_tcp_nodelay(true);
    server_.set_socket_options([](auto socket) {  // no other process listens on the port too
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    for (const Route& route : routes()) add(route);
    server_.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
      if (!response.body.empty()) return;
      answer_error(response, response.status,
                   response.status == 404
                       ? fmt::format("{} {}: expected one of {}", request.method, request.path, endpoints())
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

  // The parts of a request that a handler gets.
  struct Call {
    std::string name;  // what stands at NAME in the path
    std::string body;  // of a POST
  };
  struct Route {
    const char* method;
    const char* path;  // NAME at its end stands for any text
    void (Impl::*handler)(const Call& call, httplib::Response& response);
  };
  static std::span<const Route> routes() {
    static constexpr Route kRoutes[] = {{"GET", "/health", &Impl::health},
                                        {"GET", "/v1/models", &Impl::list_models},
                                        {"GET", "/v1/models/NAME", &Impl::show_model},
                                        {"GET", "/metrics", &Impl::metrics},
                                        {"POST", "/v1/completions", &Impl::complete}};
    return kRoutes;
  }
  static std::string endpoints() {
    std::string all;
    for (const Route& route : routes())
      all += fmt::format("{}{} {}", all.empty() ? "" : ", ", route.method, route.path);
    return all;
  }

  void add(const Route& route) {
    std::string pattern = route.path;
    if (const std::size_t name = pattern.find("NAME"); name != std::string::npos)
      pattern.replace(name, std::string::npos, "(.+)");
    if (route.method == std::string_view("GET")) {
      server_.Get(pattern, [this, route](const httplib::Request& request, httplib::Response& response) {
        (this->*route.handler)({request.matches.size() > 1 ? request.matches[1].str() : "", ""}, response);
      });
      return;
    }
    // Reads the body here, since the library takes no more than 8 KiB of what curl calls a form.
    server_.Post(pattern, [this, route](const httplib::Request& request, httplib::Response& response,
                                        const httplib::ContentReader& content) {
      if (request.is_multipart_form_data()) {
        answer_error(response, 400, "the body is not JSON but parts of a form", "invalid_request_error");
        return;
      }
      Call call;
      const bool whole = content([&](const char* data, std::size_t size) {
        call.body.append(data, size);
        return true;
      });
      if (whole) (this->*route.handler)(call, response);
    });
  }

  void health(const Call&, httplib::Response& response) {
    const bool stopping = queue_.is_closed();
    if (stopping) response.status = 503;
    response.set_content(stopping ? "{\"status\":\"stopping\"}\n" : "{\"status\":\"ok\"}\n", kJson);
  }

  void metrics(const Call&, httplib::Response& response) {
    response.set_content(metrics_text(statistics_, queue_.running(), queue_.waiting()),
                         "text/plain; version=0.0.4");
  }

  json model() const {
    return {{"id", model_.name},
            {"object", "model"},
            {"created", started_},
            {"owned_by", "switchyard"},
            {"max_model_len", model_.capacity}};
  }
  void list_models(const Call&, httplib::Response& response) {
    response.set_content(to_text({{"object", "list"}, {"data", json::array({model()})}}) + "\n", kJson);
  }
  void show_model(const Call& call, httplib::Response& response) {
    if (call.name == model_.name) {
      response.set_content(to_text(model()) + "\n", kJson);
    } else {
      answer_error(response, 404, fmt::format("model: expected {}, got {}", model_.name, call.name),
                   "invalid_request_error", "model", "model_not_found");
    }
  }

  void complete(const Call& call, httplib::Response& response) {
    CompletionRequest request;
    try {
      request = parse_completion(call.body, model_, std::random_device()());
    } catch (const BadRequest& error) {
      answer_error(response, 400, error.what(), "invalid_request_error", error.field);
      return;
    }
    const std::string id = fmt::format("cmpl-{:x}-{}", started_, ++answers_);
    const auto answering =
        std::make_shared<Answering>(Answering{CompletionAnswer(request, model_, id, seconds_of_day())});
    std::vector<WantedText> texts;
    for (TextRequest& text : request.texts) texts.push_back({std::move(text), answering->pieces});
    if (!queue_.submit(std::move(texts))) {
      response.set_header("Retry-After", "1");
      answer_error(response, 503, "no room for more texts to wait, or stopping: try again",
                   "overloaded_error");
      return;
    }
    write_while_it_grows(response, answering);
  }

  const ServedModel& model_;
  RequestQueue& queue_;
  const Statistics& statistics_;
  const std::int64_t started_;
  std::atomic<std::int64_t> answers_{0};
  int port_ = 0;
  httplib::Server server_;
  std::atomic<bool> failed_{false};
  std::thread listener_;
};

HttpServer::HttpServer(const Address& address, const ServedModel& model, RequestQueue& queue,
                       const Statistics& statistics, int connections)
    : impl_(std::make_unique<Impl>(address, model, queue, statistics, connections)) {}

HttpServer::~HttpServer() = default;

void HttpServer::start() {
  impl_->start();
}

int HttpServer::port() const {
  return impl_->port();
}

}  // namespace switchyard::serve
