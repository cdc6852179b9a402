#include "serve/http/wire.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <type_traits>
#ifndef SWITCHYARD_NO_TLS
#include <boost/asio/ssl/stream.hpp>
#endif

#include "core/error.h"

namespace switchyard::http {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Socket = asio::ip::tcp::socket;

template <typename Stream>
class StreamWire final : public Wire {
 public:
  template <typename... More>
  explicit StreamWire(Socket socket, More&... more) : stream_(std::move(socket), more...) {}

  Socket& socket() override {
    if constexpr (kIsPlain) {
      return stream_;
    } else {
      return stream_.next_layer();
    }
  }
  asio::awaitable<bool> begin() override {
    error_code problem;
    if constexpr (!kIsPlain)
      co_await stream_.async_handshake(Stream::server, asio::redirect_error(asio::use_awaitable, problem));
    co_return !problem;
  }
  asio::awaitable<std::size_t> read_some(asio::mutable_buffer buffer) override {
    error_code problem;
    const std::size_t size =
        co_await stream_.async_read_some(buffer, asio::redirect_error(asio::use_awaitable, problem));
    co_return problem ? 0 : size;
  }
  asio::awaitable<bool> write(asio::const_buffer bytes) override {
    error_code problem;
    co_await asio::async_write(stream_, bytes, asio::redirect_error(asio::use_awaitable, problem));
    co_return !problem;
  }
  asio::awaitable<void> end() override {
    error_code problem;
    if constexpr (!kIsPlain)
      co_await stream_.async_shutdown(asio::redirect_error(asio::use_awaitable, problem));
    socket().shutdown(Socket::shutdown_send, problem);
  }

 private:
  static constexpr bool kIsPlain = std::is_same_v<Stream, Socket>;
  Stream stream_;
};

}  // namespace

std::unique_ptr<Wire> make_wire(Socket socket, asio::ssl::context* tls) {
  if (tls == nullptr) return std::make_unique<StreamWire<Socket>>(std::move(socket));
#ifdef SWITCHYARD_NO_TLS
  CHECK(false, "a context of TLS in a build without it");
#else
  return std::make_unique<StreamWire<asio::ssl::stream<Socket>>>(std::move(socket), *tls);
#endif
}

}  // namespace switchyard::http
