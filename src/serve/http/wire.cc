#include "serve/http/wire.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <type_traits>

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
      co_await stream_.async_handshake(asio::ssl::stream_base::server,
                                       asio::redirect_error(asio::use_awaitable, problem));
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
  return std::make_unique<StreamWire<asio::ssl::stream<Socket>>>(std::move(socket), *tls);
}

}  // namespace switchyard::http
