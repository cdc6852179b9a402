#include "serve/http/server.h"

#include <netinet/tcp.h>
#include <sys/resource.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#ifndef SWITCHYARD_NO_TLS
#include <boost/asio/ssl/context.hpp>
#endif

#include "core/error.h"
#include "serve/http/connection.h"

namespace switchyard::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kPauseOfAccept = std::chrono::milliseconds(100);  // after an error, such as no file left
constexpr int kKeepaliveSeconds = 15;                            // without a byte, and between two probes
constexpr int kKeepaliveProbes = 4;

void raise_file_limit() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= files.rlim_max) return;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

void set_options(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const int handle = socket.native_handle();
  ::setsockopt(handle, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepaliveSeconds, sizeof kKeepaliveSeconds);
  ::setsockopt(handle, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepaliveSeconds, sizeof kKeepaliveSeconds);
  ::setsockopt(handle, IPPROTO_TCP, TCP_KEEPCNT, &kKeepaliveProbes, sizeof kKeepaliveProbes);
}

std::shared_ptr<asio::ssl::context> tls_of(const Options& options) {
  if (options.tls_certificate.empty() != options.tls_key.empty())
    fail_usage("[serve] TLS needs both a certificate and its key");
  if (options.tls_key.empty()) return {};
#ifdef SWITCHYARD_NO_TLS
  fail_usage(
      "[serve] tls_cert, tls_key: this build has no TLS; expected neither, behind a proxy that has it");
#else
  auto tls = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                   asio::ssl::context::no_tlsv1_1);
  error_code problem;
  tls->use_certificate_chain_file(options.tls_certificate, problem);
  if (problem)
    fail_usage("[serve] {}: expected a certificate as PEM ({})", options.tls_certificate, problem.message());
  tls->use_private_key_file(options.tls_key, asio::ssl::context::pem, problem);
  if (problem)
    fail_usage("[serve] {}: expected the certificate's key as PEM ({})", options.tls_key, problem.message());
  return tls;
#endif
}

}  // namespace

class Server::Impl {
 public:
  Impl(const Options& options, std::vector<Route> routes, std::vector<ErrorForm> forms)
      : options_(options),
        router_(options_, std::move(routes), std::move(forms)),
        tls_(tls_of(options_)),
        io_(options_.io_threads),
        work_(asio::make_work_guard(io_)),
        acceptor_(asio::make_strand(io_)),
        pause_(acceptor_.get_executor()) {
    listen();
  }

  ~Impl() {
    stop();
    if (!threads_.empty()) {
      std::unique_lock lock(mutex_);
      ended_.wait(lock, [&] { return connections_.empty() && !accepting_; });
    }
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
    lanes_.join();
  }

  void start() {
    raise_file_limit();
    accepting_ = true;
    asio::co_spawn(acceptor_.get_executor(), accept_all(), asio::detached);
    for (int i = 0; i < options_.io_threads; ++i) threads_.emplace_back([this] { io_.run(); });
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    for (const auto& connection : connections_) connection->stop();
    asio::post(acceptor_.get_executor(), [this] {
      error_code ignored;
      acceptor_.close(ignored);
      pause_.cancel();
    });
  }

  int port() const { return port_; }

 private:
  void listen() {
    error_code problem;
    tcp::resolver resolver(io_);
    const auto found = resolver.resolve(options_.host, std::to_string(options_.port),
                                        tcp::resolver::passive | tcp::resolver::numeric_service, problem);
    if (!problem) {
      const tcp::endpoint endpoint = *found.begin();
      acceptor_.open(endpoint.protocol(), problem);
      if (!problem) acceptor_.set_option(tcp::acceptor::reuse_address(true), problem);
      if (!problem) acceptor_.bind(endpoint, problem);
      if (!problem) acceptor_.listen(asio::socket_base::max_listen_connections, problem);
    }
    if (problem)
      fail_usage(
          "[serve] cannot listen on {} port {} ({}): expected an address of this machine and a free port",
          options_.host, options_.port, problem.message());
    port_ = acceptor_.local_endpoint().port();
  }

  asio::awaitable<void> accept_all() {
    while (acceptor_.is_open()) {
      tcp::socket socket(asio::make_strand(io_));
      error_code problem;
      co_await acceptor_.async_accept(socket, asio::redirect_error(asio::use_awaitable, problem));
      if (!problem) {
        take(std::move(socket));
      } else if (acceptor_.is_open()) {  // an error of one client, or of the process: it may pass
        pause_.expires_after(kPauseOfAccept);
        co_await pause_.async_wait(asio::redirect_error(asio::use_awaitable, problem));
      }
    }
    const std::lock_guard lock(mutex_);
    accepting_ = false;
    ended_.notify_all();
  }

  void take(tcp::socket socket) {
    set_options(socket);
    const auto executor = socket.get_executor();
    const auto connection = std::make_shared<Connection>(make_wire(std::move(socket), tls_.get()),
                                                         Connection::Shared{options_, router_, lanes_});
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    const auto place = connections_.insert(connections_.end(), connection);
    asio::co_spawn(executor, connection->run(), [this, place](const std::exception_ptr&) {
      const std::lock_guard own_lock(mutex_);
      connections_.erase(place);
      ended_.notify_all();
    });
  }

  const Options options_;
  const Router router_;
  std::shared_ptr<asio::ssl::context> tls_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  Lanes lanes_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  int port_ = 0;
  std::vector<std::thread> threads_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable ended_;
  std::list<std::shared_ptr<Connection>> connections_;
  bool stopping_ = false, accepting_ = false;
};

Server::Server(const Options& options, std::vector<Route> routes, std::vector<ErrorForm> forms)
    : impl_(std::make_unique<Impl>(options, std::move(routes), std::move(forms))) {}

Server::~Server() = default;

bool Server::knows_tls() {
#ifdef SWITCHYARD_NO_TLS
  return false;
#else
  return true;
#endif
}

void Server::start() {
  impl_->start();
}

void Server::stop() {
  impl_->stop();
}

int Server::port() const {
  return impl_->port();
}

}  // namespace switchyard::http
