#include "serve/http/connection.h"

#include <fmt/format.h>
#include <poll.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstdio>

#include "core/messages.h"

namespace switchyard::http {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Step = RequestReader::Step;

// No argument of co_await is made in place: g++ 12 destroys such temporaries twice.

constexpr std::size_t kWriteAtOnce = std::size_t{64} << 10;  // bytes that must go out within write_seconds
constexpr double kLookSeconds = 1;    // between two looks whether the client is still there
constexpr double kLingerSeconds = 5;  // for what a client still sends after the last answer

std::chrono::nanoseconds nanoseconds_of(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void append(std::string& bytes, std::string_view text, bool in_chunks) {
  if (!text.empty()) bytes += in_chunks ? chunk_text(text) : std::string(text);
}

}  // namespace

Connection::Connection(std::unique_ptr<Wire> wire, const Shared& shared)
    : wire_(std::move(wire)),
      shared_(shared),
      deadline_(wire_->socket().get_executor()),
      news_(wire_->socket().get_executor()) {}

Connection::Listening::Listening(Connection& connection, Growing& growing) : growing_(growing) {
  growing_.on_more([&connection] { connection.wake(); });
}

Connection::Listening::~Listening() {
  growing_.on_more({});
  growing_.abandon();  // texts that are over do not notice
}

asio::awaitable<void> Connection::run() {
  const auto self = shared_from_this();
  try {
    co_await serve();
  } catch (const std::exception& error) {
    say("[serve] a connection ended: {}", error.what());
  }
  close();
}

asio::awaitable<void> Connection::serve() {
  set_deadline(shared_.options.read_seconds);
  const bool agreed = co_await wire_->begin();
  clear_deadline();
  if (!agreed) co_return;
  RequestReader reader(shared_.options.most_head, shared_.options.most_body);
  while (!stopping_) {
    const Step step = co_await read(reader);
    if (step == Step::more) co_return;  // the client has ended, or takes too long
    bool goes_on = false;
    if (step == Step::bad) {
      Request none;
      none.path = reader.request().path;  // as far as it was read
      co_await send(none, reader.refusal(), false);
    } else {
      goes_on = co_await answer(reader);
    }
    if (!goes_on) break;
    reader.next();
  }
  co_await linger();
}

// Reads up to the end of the head, or once that was looked at, of the body. Returns `more` where the
// connection has ended before.
asio::awaitable<Step> Connection::read(RequestReader& reader) {
  idle_ = true;
  bool had_begun = false;
  Step step = reader.advance();
  while (step == Step::more && !stopping_) {
    const bool has_begun = reader.has_begun();
    const bool in_body = !reader.request().method.empty();
    if (!has_begun) {
      set_deadline(shared_.options.idle_seconds);
    } else if (!had_begun || in_body) {
      set_deadline(shared_.options.read_seconds);
    }
    had_begun = has_begun;
    const std::size_t size = co_await wire_->read_some(asio::buffer(buffer_));
    if (size == 0) break;
    reader.add({buffer_.data(), size});
    step = reader.advance();
  }
  clear_deadline();
  idle_ = false;
  co_return step;
}

// Returns whether the connection goes on.
asio::awaitable<bool> Connection::answer(RequestReader& reader) {
  Request& request = reader.request();
  Router::Found found = shared_.router.find(request);
  const bool has_body = reader.has_body();
  if (found.route == nullptr) {
    const bool goes_on = request.keep_alive && !has_body;
    co_return co_await send(request, found.refusal, goes_on);
  }
  if (!reader.read_body()) co_return co_await send(request, reader.refusal(), false);
  if (has_body && reader.awaits_continue()) {
    const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    const bool written = co_await write(go_on);
    if (!written) co_return false;
  }
  const Step step = co_await read(reader);
  if (step == Step::bad) co_return co_await send(request, reader.refusal(), false);
  if (step != Step::whole) co_return false;
  Answer answer = co_await call(*found.route, request);
  if (auto* const response = std::get_if<Response>(&answer))
    co_return co_await send(request, *response, request.keep_alive);
  const std::shared_ptr<Growing> growing = std::get<std::shared_ptr<Growing>>(answer);
  co_return co_await send_growing(request, *growing, request.keep_alive);
}

asio::awaitable<Answer> Connection::call(const Route& route, Request& request) {
  if (route.method == "GET") co_return shared_.router.call(route, request);
  const std::size_t cost = route.cost ? route.cost(request) : request.body.size();
  co_return co_await asio::co_spawn(shared_.lanes.executor_of(cost), call_here(route, request),
                                    asio::use_awaitable);
}

asio::awaitable<Answer> Connection::call_here(const Route& route, Request& request) {
  co_return shared_.router.call(route, request);
}

asio::awaitable<bool> Connection::send(const Request& request, Response& response, bool keep_alive) {
  const bool goes_on = keep_alive && !stopping_;
  shared_.router.shape_error(request.path, response);
  shared_.router.allow_page(request, response.headers);
  std::string bytes = head_text(response, request, response.body.size(), goes_on);
  if (request.method != "HEAD" && response.status != 204) bytes += response.body;
  const bool written = co_await write(bytes);
  co_return written&& goes_on;
}

asio::awaitable<bool> Connection::send_growing(const Request& request, Growing& growing, bool keep_alive) {
  const Listening listening(*this, growing);
  if (growing.is_stream()) co_return co_await stream(request, growing, keep_alive);
  co_return co_await wait_for_whole(request, growing, keep_alive);
}

asio::awaitable<bool> Connection::stream(const Request& request, Growing& growing, bool keep_alive) {
  const bool in_chunks = request.version >= 11;
  const bool goes_on = keep_alive && in_chunks;
  Response head = growing.head();
  shared_.router.allow_page(request, head.headers);
  std::string bytes = head_text(head, request, {}, goes_on);
  const bool has_comments = head.content_type == "text/event-stream";
  double written = seconds_now(), news = written;
  for (;;) {
    woken_ = false;  // pieces that come from here on wake again
    Growing::Part part = growing.take();
    if (!part.texts.empty()) news = seconds_now();
    if (part.state == Growing::State::growing && gives_up(news)) part.state = Growing::State::broken;
    for (const std::string& text : part.texts) append(bytes, text, in_chunks);
    if (has_comments && bytes.empty() && seconds_now() - written >= shared_.options.quiet_seconds)
      append(bytes, ": wait\n\n", in_chunks);
    if (part.state == Growing::State::ended && in_chunks) bytes += "0\r\n\r\n";
    if (!bytes.empty()) {
      const bool all = co_await write(bytes);
      if (!all) co_return false;
      bytes.clear();
      written = seconds_now();
    }
    if (part.state == Growing::State::ended) co_return goes_on && !stopping_;
    if (part.state == Growing::State::broken) {  // not as if it were whole
      close();
      co_return false;
    }
    co_await wait_for_more(std::min(kLookSeconds, shared_.options.quiet_seconds));
    if (is_client_gone()) co_return false;
  }
}

asio::awaitable<bool> Connection::wait_for_whole(const Request& request, Growing& growing, bool keep_alive) {
  std::string body;
  double news = seconds_now();
  for (;;) {
    woken_ = false;
    Growing::Part part = growing.take();
    if (!part.texts.empty()) news = seconds_now();
    if (part.state == Growing::State::growing && gives_up(news)) part.state = Growing::State::broken;
    for (const std::string& text : part.texts) body += text;
    if (part.state == Growing::State::ended) {
      Response whole = growing.head();
      whole.body = std::move(body);
      co_return co_await send(request, whole, keep_alive);
    }
    if (part.state == Growing::State::broken) {
      Response broken = error_response(503, "the server stops and has given this answer up");
      broken.headers.push_back({"Retry-After", "1"});
      co_return co_await send(request, broken, false);
    }
    co_await wait_for_more(kLookSeconds);
    if (is_client_gone()) co_return false;
  }
}

asio::awaitable<bool> Connection::write(const std::string& bytes) {
  bool written = true;
  for (std::size_t begin = 0; written && begin < bytes.size(); begin += kWriteAtOnce) {
    const double seconds = stopping_ ? std::min(shared_.options.stop_seconds, shared_.options.write_seconds)
                                     : shared_.options.write_seconds;
    set_deadline(seconds);
    writing_ = true;
    written = co_await wire_->write(
        asio::buffer(bytes.data() + begin, std::min(kWriteAtOnce, bytes.size() - begin)));
    writing_ = false;
    clear_deadline();
  }
  co_return written;
}

asio::awaitable<void> Connection::wait_for_more(Seconds seconds) {
  if (woken_) co_return;
  error_code cancelled;
  news_.expires_after(nanoseconds_of(seconds));
  co_await news_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
}

// Any thread; one wake on its way is enough.
void Connection::wake() {
  if (wake_is_posted_.exchange(true)) return;
  asio::post(wire_->socket().get_executor(), [self = shared_from_this()] {
    self->wake_is_posted_ = false;
    self->woken_ = true;
    self->news_.cancel();
  });
}

// A socket that is closed while bytes of the client have not been read is reset, and the client may lose the
// end of the answer by that. So they are read.
asio::awaitable<void> Connection::linger() {
  if (!wire_->socket().is_open()) co_return;
  set_deadline(kLingerSeconds);
  co_await wire_->end();
  idle_ = true;
  std::size_t size = 1;
  while (size > 0 && !stopping_) size = co_await wire_->read_some(asio::buffer(buffer_));
  clear_deadline();
}

bool Connection::is_client_gone() {
  if (!wire_->socket().is_open()) return true;
  pollfd look{wire_->socket().native_handle(), 0, 0};
  return ::poll(&look, 1, 0) > 0 && (look.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0;
}

void Connection::set_deadline(Seconds seconds) {
  ++deadlines_;
  close_at(RunningClock::now() + RunningClock::duration_of(seconds));
}

// While the server is stopped, no client is late.
void Connection::close_at(RunningClock::time_point deadline) {
  deadline_.expires_at(RunningClock::steady(deadline));
  deadline_.async_wait([weak = weak_from_this(), number = deadlines_, deadline](const error_code& cancelled) {
    const auto self = weak.lock();
    if (!self || cancelled || self->deadlines_ != number) return;
    if (RunningClock::now() < deadline) return self->close_at(deadline);
    self->close();
  });
}

void Connection::clear_deadline() {
  ++deadlines_;
  deadline_.cancel();
}

bool Connection::gives_up(Seconds since) const {
  return stopping_ && seconds_now() - std::max(since, stopping_since_) >= shared_.options.stop_seconds;
}

void Connection::close() {
  error_code ignored;
  wire_->socket().close(ignored);
}

void Connection::stop() {
  asio::post(wire_->socket().get_executor(), [self = shared_from_this()] {
    self->stopping_ = true;
    self->stopping_since_ = seconds_now();
    if (self->idle_) self->close();
    if (self->writing_) self->set_deadline(self->shared_.options.stop_seconds);
  });
}

}  // namespace switchyard::http
