// Wire: the bytes of one connection, in the clear or through TLS. All functions run on
// the connection's strand.
#pragma once

// clang-format off: the coroutines of Asio 1.74 need this before them
#include <utility>
// clang-format on

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>

namespace boost::asio::ssl {
class context;
}

namespace switchyard::http {

class Wire {
 public:
  Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  virtual ~Wire() = default;

  virtual boost::asio::ip::tcp::socket& socket() = 0;
  // Returns whether both sides agree.
  virtual boost::asio::awaitable<bool> begin() = 0;
  // Returns how many bytes came; 0 at the end and after an error.
  virtual boost::asio::awaitable<std::size_t> read_some(boost::asio::mutable_buffer buffer) = 0;
  // Returns whether all was written.
  virtual boost::asio::awaitable<bool> write(boost::asio::const_buffer bytes) = 0;
  // Says that nothing more will be written.
  virtual boost::asio::awaitable<void> end() = 0;
};

// `tls` is null for bytes in the clear, and must outlive the wire.
std::unique_ptr<Wire> make_wire(boost::asio::ip::tcp::socket socket, boost::asio::ssl::context* tls);

}  // namespace switchyard::http
