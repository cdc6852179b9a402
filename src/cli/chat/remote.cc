// The terminal's chat over another server, by HTTP or HTTPS.
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>  // Boost 1.74's asio uses std::exchange without it
#ifndef SWITCHYARD_NO_TLS
#include <boost/asio/ssl.hpp>
#include <boost/beast/ssl.hpp>
#endif

#include "cli/chat/backend.h"
#include "core/error.h"
#include "serve/http/options.h"

namespace switchyard {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace beast_http = beast::http;
using asio::ip::tcp;

struct ServerAddress {
  bool is_secure = false;
  std::string host, port, prefix;  // `prefix`: of paths, without /v1
};

ServerAddress address_of(const std::string& url) {
  ServerAddress address;
  std::string rest = url;
  if (rest.starts_with("https://")) {
#ifdef SWITCHYARD_NO_TLS
    fail_usage("[chat] --url: this build has no TLS; expected http://HOST:PORT, got {}", url);
#endif
    address.is_secure = true;
    rest.erase(0, 8);
  } else if (rest.starts_with("http://")) {
    rest.erase(0, 7);
  } else if (rest.find("://") != std::string::npos) {
    fail_usage("[chat] --url: expected http://HOST:PORT or https://HOST, got {}", url);
  }
  const std::size_t slash = rest.find('/');
  if (slash != std::string::npos) address.prefix = rest.substr(slash);
  rest = rest.substr(0, slash);
  while (address.prefix.ends_with('/')) address.prefix.pop_back();
  if (address.prefix.ends_with("/v1")) address.prefix.resize(address.prefix.size() - 3);
  const std::size_t bracket = rest.find(']');  // of an IPv6 address
  const std::size_t colon = rest.find(':', bracket == std::string::npos ? 0 : bracket);
  address.host = rest.substr(0, colon);
  address.port = colon == std::string::npos ? (address.is_secure ? "443" : "80") : rest.substr(colon + 1);
  if (address.host.starts_with('[') && address.host.ends_with(']'))
    address.host = address.host.substr(1, address.host.size() - 2);
  if (const std::size_t zone = address.host.find("%25"); zone != std::string::npos)
    address.host.erase(zone + 1, 2);
  if (address.host.empty() || address.port.empty())
    fail_usage("[chat] --url: expected http://HOST:PORT or https://HOST, got {}", url);
  return address;
}

// A Host header has no zone of an address: it means nothing to the other machine.
std::string host_header(const ServerAddress& address) {
  return switchyard::http::host_in_url(address.host.substr(0, address.host.find('%'))) + ":" + address.port;
}

// A person may have typed text that is not UTF-8.
std::string text_of(const ChatJson& body) {
  return body.dump(-1, ' ', false, ChatJson::error_handler_t::replace);
}

class RemoteChat : public ChatBackend {
 public:
  RemoteChat(const std::string& url, std::string key)
      : url_(url), address_(address_of(url)), key_(std::move(key)) {
#ifndef SWITCHYARD_NO_TLS
    tls_.set_default_verify_paths();
    tls_.set_verify_mode(asio::ssl::verify_peer);
#endif
  }

  void ask(const ChatJson& body, const std::function<void(const ChatJson& event)>& on_event,
           const std::function<bool()>& goes_on) override {
    ChatJson asked = body;
    if (!asked.contains("model")) asked["model"] = model("").name;
    const char* const path = body.contains("prompt") ? "/v1/completions" : "/v1/chat/completions";
    EventReader events;
    std::string whole;
    const unsigned status = exchange(beast_http::verb::post, path, text_of(asked), goes_on,
                                     [&](unsigned of, std::string_view bytes) {
                                       if (of == 200)
                                         events.add(bytes, on_event);
                                       else
                                         whole += bytes;
                                     });
    if (status == 0) return;
    if (status == 200) {
      if (!events.is_whole())
        on_event(
            {{"error", {{"message", fmt::format("{}: the connection ended before the answer did", url_)}}}});
      return;
    }
    const ChatJson error = ChatJson::parse(whole, nullptr, false);
    on_event(
        error.is_object() && error.contains("error")
            ? error
            : ChatJson{{"error", {{"message", fmt::format("{} answered with status {}", url_, status)}}}});
  }

  AnsweringModel model(const std::string& named) override {
    if (model_.name.empty() || (!named.empty() && model_.name != named)) model_ = listed_model(named);
    return model_;
  }

  // The server alone knows what its model takes.
  std::string problem_of(const ChatJson&) override {
    return "";
  }

  std::int64_t count_tokens(const ChatJson& body) override {
    const ChatJson answer = json_of(beast_http::verb::post, "/tokenize", text_of(body));
    if (!answer.is_object() || !answer.contains("count"))
      fail_runtime("[chat] {} does not count tokens (/tokenize)", url_);
    return answer["count"].get<std::int64_t>();
  }

 private:
  AnsweringModel listed_model(const std::string& named) {
    const ChatJson list = json_of(beast_http::verb::get, "/v1/models", "");
    const bool is_list = list.is_object() && list.contains("data") && list["data"].is_array();
    for (const ChatJson& model : is_list ? list["data"] : ChatJson::array()) {
      if (!model.is_object() || !model.contains("id") || !model["id"].is_string()) continue;
      AnsweringModel found{model["id"].get<std::string>()};
      if (!named.empty() && found.name != named) continue;
      const ChatJson meta = model.value("meta", ChatJson());
      if (model.contains("max_model_len") && model["max_model_len"].is_number())
        found.context = model["max_model_len"].get<std::int64_t>();
      if (meta.is_object() && meta.contains("context_length") && meta["context_length"].is_number())
        found.context = meta["context_length"].get<std::int64_t>();
      found.chats = !meta.is_object() || !meta.contains("chat_template") || meta["chat_template"] != false;
      return found;
    }
    if (named.empty()) fail_runtime("[chat] {} names no models (/v1/models)", url_);
    return {named};  // an alias, which the list does not have
  }

  ChatJson json_of(beast_http::verb verb, const std::string& path, const std::string& body) {
    std::string text;
    const unsigned status = exchange(
        verb, path, body, [] { return true; }, [&](unsigned, std::string_view bytes) { text += bytes; });
    if (status != 200) fail_runtime("[chat] {}{}: status {}", url_, path, status);
    return ChatJson::parse(text, nullptr, false);
  }

  using OnBytes = std::function<void(unsigned status, std::string_view bytes)>;

  // Sends a request and gives the answer's bytes away as they come. Returns the status, or 0 where `goes_on`
  // ended the answer early.
  unsigned exchange(beast_http::verb verb, const std::string& path, const std::string& body,
                    const std::function<bool()>& goes_on, const OnBytes& on_bytes) {
    beast_http::request<beast_http::string_body> request{verb, address_.prefix + path, 11};
    request.set(beast_http::field::host, host_header(address_));
    request.set(beast_http::field::content_type, "application/json");
    request.set(beast_http::field::connection, "close");
    if (!key_.empty()) request.set(beast_http::field::authorization, "Bearer " + key_);
    request.body() = body;
    request.prepare_payload();
    asio::io_context context;
    boost::system::error_code failed;
    tcp::resolver resolver(context);
    const auto places = resolver.resolve(address_.host, address_.port, failed);
    if (failed) fail_runtime("[chat] {}: {}", url_, failed.message());
#ifndef SWITCHYARD_NO_TLS
    if (address_.is_secure) {
      asio::ssl::stream<tcp::socket> stream(context, tls_);
      stream.set_verify_callback(asio::ssl::host_name_verification(address_.host));
      SSL_set_tlsext_host_name(stream.native_handle(), address_.host.c_str());
      asio::connect(stream.next_layer(), places, failed);
      if (!failed) stream.handshake(asio::ssl::stream_base::client, failed);
      if (failed) fail_runtime("[chat] {}: {}", url_, failed.message());
      return talk(context, stream, request, goes_on, on_bytes);
    }
#endif
    tcp::socket socket(context);
    asio::connect(socket, places, failed);
    if (failed) fail_runtime("[chat] {}: {}", url_, failed.message());
    return talk(context, socket, request, goes_on, on_bytes);
  }

  template <typename Stream>
  unsigned talk(asio::io_context& context, Stream& stream,
                beast_http::request<beast_http::string_body>& request, const std::function<bool()>& goes_on,
                const OnBytes& on_bytes) {
    boost::system::error_code failed;
    beast_http::write(stream, request, failed);
    if (failed) fail_runtime("[chat] {}: {}", url_, failed.message());
    beast::flat_buffer buffer;
    beast_http::response_parser<beast_http::buffer_body> parser;
    parser.body_limit(std::numeric_limits<std::uint64_t>::max());  // Boost 1.74 takes none for 0
    // Waits in short steps, so that an answer can be ended.
    const auto wait_for = [&](auto&& start) {
      bool done = false;
      start([&](boost::system::error_code error, std::size_t) {
        failed = error;
        done = true;
      });
      context.restart();
      while (!done) {
        context.run_for(std::chrono::milliseconds(100));
        if (!done && !goes_on()) return false;
        context.restart();
      }
      return true;
    };
    if (!wait_for([&](auto done) { beast_http::async_read_header(stream, buffer, parser, done); })) {
      context.stop();
      return 0;
    }
    std::array<char, 4096> bytes;
    while (!failed && !parser.is_done()) {
      parser.get().body().data = bytes.data();
      parser.get().body().size = bytes.size();
      if (!wait_for([&](auto done) { beast_http::async_read_some(stream, buffer, parser, done); })) return 0;
      if (failed == beast_http::error::need_buffer) failed = {};
      on_bytes(parser.get().result_int(), {bytes.data(), bytes.size() - parser.get().body().size});
      if (!goes_on()) return 0;
    }
    bool has_ended = failed == beast_http::error::end_of_stream;
#ifndef SWITCHYARD_NO_TLS
    has_ended = has_ended || failed == asio::ssl::error::stream_truncated;
#endif
    if (failed && !has_ended) fail_runtime("[chat] {}: {}", url_, failed.message());
    return parser.get().result_int();
  }

  const std::string url_;
  const ServerAddress address_;
  const std::string key_;
  AnsweringModel model_;
#ifndef SWITCHYARD_NO_TLS
  asio::ssl::context tls_{asio::ssl::context::tls_client};
#endif
};

}  // namespace

std::unique_ptr<ChatBackend> remote_chat(const std::string& url, const std::string& key) {
  return std::make_unique<RemoteChat>(url, key);
}

}  // namespace switchyard
