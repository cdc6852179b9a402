// Connection: answers the requests of one client, one after the other. A coroutine on a strand of its own; no
// thread waits for a client, nor for a text.
//
// 1. All but stop() and the wake() of an answer run on the strand.
// 2. A client counts as gone when a write fails or the socket has an error (a reset). The end of what it
//    sends is not one: it may have closed only that half (RFC 9112 9.6). One that has closed both looks the
//    same until something is sent: a stream's next event, its comment after quiet seconds, or TCP's keepalive
//    probe, whose answer is a reset once the client's system has forgotten the connection (Linux: a minute).
#pragma once

// clang-format off: the coroutines of Asio 1.74 need this before them
#include <utility>
// clang-format on

#include <array>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>

#include "core/running_clock.h"
#include "serve/http/lanes.h"
#include "serve/http/options.h"
#include "serve/http/request_reader.h"
#include "serve/http/router.h"
#include "serve/http/wire.h"

namespace switchyard::http {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // All must outlive the connection.
  struct Shared {
    const Options& options;
    const Router& router;
    Lanes& lanes;  // for handlers of POST
  };
  Connection(std::unique_ptr<Wire> wire, const Shared& shared);

  // Returns when the connection has ended. Does not throw.
  boost::asio::awaitable<void> run();
  // Ends the connection, after the answer that is under way. Any thread.
  void stop();

 private:
  using Seconds = double;
  // While it lives, a growing answer wakes its connection; then nobody wants what has not been taken.
  class Listening {
   public:
    Listening(Connection& connection, Growing& growing);
    Listening(const Listening&) = delete;
    Listening& operator=(const Listening&) = delete;
    ~Listening();

   private:
    Growing& growing_;
  };
  boost::asio::awaitable<void> serve();
  boost::asio::awaitable<RequestReader::Step> read(RequestReader& reader);
  boost::asio::awaitable<bool> answer(RequestReader& reader);
  boost::asio::awaitable<Answer> call(const Route& route, Request& request);
  boost::asio::awaitable<Answer> call_here(const Route& route, Request& request);
  // Adds headers to the response.
  boost::asio::awaitable<bool> send(const Request& request, Response& response, bool keep_alive);
  boost::asio::awaitable<bool> send_growing(const Request& request, Growing& growing, bool keep_alive);
  boost::asio::awaitable<bool> stream(const Request& request, Growing& growing, bool keep_alive);
  boost::asio::awaitable<bool> wait_for_whole(const Request& request, Growing& growing, bool keep_alive);
  boost::asio::awaitable<bool> write(const std::string& bytes);
  boost::asio::awaitable<void> wait_for_more(Seconds seconds);
  boost::asio::awaitable<void> linger();
  void wake();
  bool is_client_gone();
  // The socket is closed when they are over.
  void set_deadline(Seconds seconds);
  void close_at(RunningClock::time_point deadline);
  void clear_deadline();
  // Returns whether the server stops and an answer without news since `since` is given up.
  bool gives_up(Seconds since) const;
  void close();

  const std::unique_ptr<Wire> wire_;
  const Shared shared_;
  boost::asio::steady_timer deadline_, news_;
  std::uint64_t deadlines_ = 0;  // so that an old one does not close what came after it
  std::array<char, 16384> buffer_;
  std::atomic<bool> wake_is_posted_{false};
  bool woken_ = false, stopping_ = false;
  Seconds stopping_since_ = 0;
  bool idle_ = true;      // nothing is being answered
  bool writing_ = false;  // waits for the client to read
};

}  // namespace switchyard::http
