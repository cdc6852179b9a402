// The server with handlers that need no model: what clients send, and how the server bears with them.
#include "serve/http/server.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "chat/bad_request.h"
#include "core/error.h"
#include "serve/http/request_reader.h"
#include "serve/http/testing.h"

namespace switchyard::http {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

// A text that a test makes grow.
class TestText final : public Growing {
 public:
  explicit TestText(bool is_stream) : is_stream_(is_stream) {}
  bool is_stream() const override { return is_stream_; }
  Response head() const override {
    return {
        200, "", is_stream_ ? "text/event-stream" : "application/json", {{"x-own", "yes\r\nx-other: no"}}};
  }
  void on_more(std::function<void()> wake) override {
    const std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
  }
  Part take() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(part_, Part{{}, part_.state});
  }
  void abandon() override { abandoned_ = true; }

  void add(const std::string& text, State state = State::growing) {
    const std::lock_guard lock(mutex_);
    part_.texts.push_back(text);
    part_.state = state;
    if (wake_) wake_();
  }
  void end() { add("", State::ended); }
  bool abandoned() const { return abandoned_; }

 private:
  const bool is_stream_;
  std::mutex mutex_;
  Part part_;
  std::function<void()> wake_;
  std::atomic<bool> abandoned_{false};
};

class HttpTest : public ::testing::Test {
 protected:
  void start(Options options = {}, std::vector<ErrorForm> forms = {}) {
    std::vector<Route> routes{
        {"GET", "/health",
         [](Request&) {
           return Response{200, "ok"};
         },
         Access::open},
        {"GET", "/metrics",
         [](Request&) {
           return Response{200, "1"};
         },
         Access::monitoring},
        {"GET", "/things/NAME",
         [](Request& request) {
           return Response{200, request.name + "?" + request.query, "text/plain"};
         }},
        {"POST", "/echo",
         [](Request& request) {
           return Response{200, request.body};
         }},
        {"POST", "/key",
         [](Request& request) {
           return Response{200, std::to_string(request.key.value_or(99))};
         }},
        {"POST", "/slow",
         [](Request&) {
           std::this_thread::sleep_for(300ms);
           return Response{200, "slow"};
         }},
        {"POST", "/bad",
         [](Request&) -> Answer { throw chat::BadRequest("n", "n: expected one", "too_many", 422); }},
        {"POST", "/crash", [](Request&) -> Answer { throw std::runtime_error("secret"); }},
        {"POST", "/grow", [this](Request& request) -> Answer {
           auto text = std::make_shared<TestText>(request.body.starts_with("stream"));
           const std::lock_guard lock(mutex_);
           texts_[request.body] = text;
           return text;
         }}};
    server_ = std::make_unique<Server>(options, std::move(routes), std::move(forms));
    server_->start();
  }
  int port() const { return server_->port(); }
  Client client() const { return Client(port()); }
  ClientConnection connect(int receive_bytes = 0) const { return ClientConnection(port(), receive_bytes); }

  static std::string post(const std::string& path, const std::string& body, const std::string& headers = "",
                          int version = 1) {
    return fmt::format("POST {} HTTP/1.{}\r\nHost: x\r\n{}Content-Length: {}\r\n\r\n{}", path, version,
                       headers, body.size(), body);
  }
  // Waits for the text that a request with this body began.
  std::shared_ptr<TestText> text(const std::string& body) {
    for (int i = 0; i < 5000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (const auto found = texts_.find(body); found != texts_.end()) return found->second;
      }
      std::this_thread::sleep_for(2ms);
    }
    ADD_FAILURE() << "no text " << body;
    return std::make_shared<TestText>(false);
  }
  static void expect_soon(const auto& condition, const char* what) {
    for (int i = 0; i < 1000 && !condition(); ++i) std::this_thread::sleep_for(10ms);
    EXPECT_TRUE(condition()) << what;
  }
  double seconds_of_health() const {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(client().get("/health").body, "ok");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  void expect_error(const ClientAnswer& answer, int status, const std::string& words) {
    EXPECT_EQ(answer.status, status) << answer.body;
    const json body = json::parse(answer.body, nullptr, false);
    ASSERT_TRUE(body.is_object() && body["error"].is_object()) << answer.body;
    for (const char* field : {"message", "type", "param", "code"}) EXPECT_TRUE(body["error"].contains(field));
    EXPECT_NE(body["error"]["message"].get<std::string>().find(words), std::string::npos) << answer.body;
  }

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<TestText>> texts_;
  std::unique_ptr<Server> server_;
};

TEST_F(HttpTest, WholeAnswers) {
  start();
  const ClientAnswer answer = client().get("/things/a%2Fb?q=1");
  EXPECT_EQ(answer.body, "a/b?q=1");
  EXPECT_EQ(answer.header("Content-Type"), "text/plain");
  EXPECT_EQ(answer.header("Connection"), "close");
  EXPECT_EQ(answer.header("Date").size(), 29u);
  EXPECT_EQ(client().get("http://elsewhere/things/x").body, "x?");
  const ClientAnswer head = client().head("/things/abc");
  EXPECT_EQ(head.header("Content-Length"), "4");
  EXPECT_EQ(client().post("/echo", "{}").body, "{}");
  const std::string large(3 << 20, 'x');
  EXPECT_EQ(client().post("/echo", large).body, large);

  ClientConnection connection = connect();  // many requests over one, also several at once
  std::string several = "\r\n";
  for (int i = 0; i < 5; ++i) several += post("/echo", std::to_string(i));
  several +=
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
  several +=
      "GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nxxHEAD /health HTTP/1.1\r\nHost: "
      "x\r\n\r\n";
  connection.send(several);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(connection.answer().body, std::to_string(i));
  EXPECT_EQ(connection.answer().body, "abcde");
  EXPECT_EQ(connection.answer().body, "ok");
  EXPECT_EQ(connection.answer(true).status, 200);
  for (const char c : post("/echo", "slowly")) connection.send(std::string(1, c));
  EXPECT_EQ(connection.answer().body, "slowly");
  connection.send("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(connection.answer().status, 100);
  connection.send("ab");
  EXPECT_EQ(connection.answer().body, "ab");
}

TEST_F(HttpTest, OldVersionGetsNoChunks) {
  start();
  for (const std::string body : {"whole", "stream"}) {
    ClientConnection connection = connect();
    connection.send(post("/grow", body, "", 0));
    text(body)->add("one ");
    text(body)->add("two", Growing::State::ended);
    const std::string all = connection.receive_all();
    EXPECT_TRUE(all.starts_with("HTTP/1.0 200 OK\r\n")) << all;
    EXPECT_TRUE(all.ends_with("\r\n\r\none two")) << all;
    EXPECT_EQ(all.find("Transfer-Encoding"), std::string::npos);
    EXPECT_EQ(all.find("Content-Length: 7") != std::string::npos, body == "whole");
  }
  ClientConnection connection = connect();
  for (int i = 0; i < 2; ++i) {
    connection.send("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(connection.answer().header("Connection"), "keep-alive");
  }
}

TEST_F(HttpTest, GrowingAnswers) {
  Options options;
  options.quiet_seconds = 0.3;
  start(options);
  ClientConnection connection = connect();
  connection.send(post("/grow", "stream"));
  std::string head = connection.receive();  // before anything was made
  EXPECT_NE(head.find("Transfer-Encoding: chunked\r\n"), std::string::npos) << head;
  EXPECT_NE(head.find("x-own: yes  x-other: no\r\n"), std::string::npos) << head;
  EXPECT_EQ(connection.receive(), chunk_text(": wait\n\n"));
  text("stream")->add("data: 1\n\n");
  EXPECT_EQ(connection.receive(), chunk_text("data: 1\n\n"));
  text("stream")->end();
  EXPECT_EQ(connection.receive(), "0\r\n\r\n");
  connection.send(post("/grow", "whole"));  // the same connection goes on
  text("whole")->add("12");
  text("whole")->add("34", Growing::State::ended);
  EXPECT_EQ(connection.answer().body, "1234");

  connection.send(post("/grow", "whole broken"));
  text("whole broken")->add("1", Growing::State::broken);
  EXPECT_EQ(connection.answer().status, 503);
  ClientConnection other = connect();
  other.send(post("/grow", "stream broken"));
  text("stream broken")->add("1", Growing::State::broken);
  EXPECT_FALSE(other.answer().is_whole);
}

TEST_F(HttpTest, Refusals) {
  Options options;
  options.most_body = 1000;
  start(options);
  expect_error(client().get("/nowhere"), 404, "GET /nowhere: expected one of GET /health, GET /metrics, ");
  const ClientAnswer other = client().get("/echo");
  expect_error(other, 405, "POST");
  EXPECT_EQ(other.header("Allow"), "POST, OPTIONS");
  EXPECT_EQ(client().request("DELETE", "/health").header("Allow"), "GET, HEAD, OPTIONS");
  expect_error(client().post("/echo", std::string(1001, 'x')), 413, "at most 1000");
  expect_error(client().post("/echo", std::string(3 << 20, 'x')), 413, "at most 1000");
  expect_error(client().post("/bad", ""), 422, "expected one");
  const ClientAnswer crash = client().post("/crash", "");
  expect_error(crash, 500, "log");
  EXPECT_EQ(crash.body.find("secret"), std::string::npos);
  expect_error(client().post("/echo", "--x--", "multipart/form-data; boundary=x"), 400, "form");
  expect_error(client().request("POST", "/echo", "Content-Encoding: gzip\r\n", "x"), 415, "gzip");
  expect_error(client().get("/things/%4"), 400, "digits");
  EXPECT_EQ(client().request("GET", "/health", std::string(100, 'a') + ": b\r\n").status, 200);
  std::string headers;
  for (int i = 0; i < 500; ++i) headers += fmt::format("x-{}: {}\r\n", i, std::string(50, 'v'));
  EXPECT_EQ(client().request("GET", "/health", headers).status, 200);
  expect_error(client().request("GET", "/health", "x: " + std::string(70000, 'v') + "\r\n"), 431, "65536");
  const auto raw = [&](const std::string& bytes) {
    ClientConnection connection = connect();
    connection.send(bytes);
    return connection.answer();
  };
  expect_error(raw("hello\r\n\r\n"), 400, "no request");
  expect_error(raw("GET /health HTTP/1.1\r\n\r\n"), 400, "Host");
  expect_error(raw("GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400, "Host");
  expect_error(raw("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999\r\n\r\n"), 413,
               "bytes");
  expect_error(raw("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"), 400, "");
  expect_error(raw("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n" +
                   std::string(0xfff, 'x') + "\r\n"),
               413, "1000");
  expect_error(
      raw("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"), 400,
      "");
}

TEST_F(HttpTest, Keys) {
  Options options;
  options.keys.add("first");
  options.keys.add("second");
  start(options);
  const ClientAnswer none = client().post("/key", "");
  expect_error(none, 401, "key");
  EXPECT_EQ(none.header("WWW-Authenticate"), "Bearer");
  EXPECT_EQ(json::parse(none.body)["error"]["code"], "invalid_api_key");
  const auto with = [&](const std::string& header) {
    return client().request("POST", "/key", header + "\r\n");
  };
  EXPECT_EQ(with("Authorization: Bearer first").body, "0");
  EXPECT_EQ(with("authorization: bearer second").body, "1");
  EXPECT_EQ(with("X-Api-Key: second").body, "1");
  for (const char* wrong : {"Authorization: Bearer third", "Authorization: first", "Authorization: Bearer ",
                            "Authorization: Basic first", "x-api-key: firs", "x-api-key: first2"})
    EXPECT_EQ(with(wrong).status, 401) << wrong;
  EXPECT_EQ(client().get("/health").status, 200);
  EXPECT_EQ(client().get("/metrics").status, 200);
  EXPECT_EQ(client().get("/nowhere").status, 401);
  EXPECT_EQ(client().request("OPTIONS", "/key").status, 204);
  server_.reset();
  options.protect_metrics = true;
  start(options);
  EXPECT_EQ(client().get("/metrics").status, 401);

  const std::string file = ::testing::TempDir() + "keys.txt";
  std::FILE* const out = std::fopen(file.c_str(), "w");
  std::fputs("# ours\n\n  one \r\ntwo\n", out);
  std::fclose(out);
  Keys keys;
  add_keys_of_file(file, keys);
  EXPECT_EQ(keys.find("one"), 0u);
  EXPECT_EQ(keys.find("two"), 1u);
  EXPECT_EQ(keys.find(""), std::nullopt);
  EXPECT_THROW(add_keys_of_file(file + ".no", keys), Error);
}

TEST_F(HttpTest, PagesOfOtherSites) {
  start();
  const std::string foreign = "Origin: http://localhost:5173\r\n",
                    own = fmt::format("Origin: http://127.0.0.1:{}\r\n", port());
  const ClientAnswer options = client().request("OPTIONS", "/echo", foreign);
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.header("Allow"), "POST, OPTIONS");
  EXPECT_EQ(options.header("Access-Control-Allow-Origin"), "");
  EXPECT_EQ(client().request("OPTIONS", "*").status, 204);
  expect_error(client().request("POST", "/echo", foreign, "x"), 403, "http://localhost:5173");
  expect_error(client().request("POST", "/echo", "Origin: null\r\n", "x"), 403, "null");
  EXPECT_EQ(client().request("POST", "/echo", own, "x").status, 200);
  EXPECT_EQ(client().request("GET", "/health", foreign).header("Access-Control-Allow-Origin"), "");
  server_.reset();

  Options with_cors;
  with_cors.origins = {"http://localhost:5173"};
  start(with_cors);
  const ClientAnswer preflight =
      client().request("OPTIONS", "/echo",
                       foreign + "Access-Control-Request-Headers: x-stainless-os,content-type, X-Evil\r\n");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.header("Access-Control-Allow-Origin"), "http://localhost:5173");
  EXPECT_EQ(preflight.header("Access-Control-Allow-Methods"), "GET, POST, DELETE, OPTIONS");
  EXPECT_EQ(preflight.header("Access-Control-Allow-Headers"),
            "authorization, content-type, x-api-key, x-stainless-os");
  EXPECT_EQ(preflight.header("Access-Control-Max-Age"), "600");
  const ClientAnswer asked = client().request("POST", "/echo", foreign, "x");
  EXPECT_EQ(asked.status, 200);
  EXPECT_EQ(asked.header("Access-Control-Allow-Origin"), "http://localhost:5173");
  EXPECT_EQ(asked.header("Vary"), "Origin");
  EXPECT_EQ(client().request("POST", "/echo", "Origin: http://evil.example\r\n", "x").status, 403);
}

TEST_F(HttpTest, NamesOfThisMachine) {
  Options options;
  options.host_names = {"mine.example"};
  start(options);
  const auto status = [&](const std::string& host) {
    ClientConnection connection = connect();
    connection.send("GET /health HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    return connection.answer().status;
  };
  for (const char* known :
       {"localhost:80", "127.0.0.1", "[::1]:8000", "10.0.0.7:1", "x", "MINE.example:99", ""})
    EXPECT_EQ(status(known), 200) << known;
  for (const char* foreign : {"evil.example", "evil.example:8000", "127.0.0.1.evil.example"})
    EXPECT_EQ(status(foreign), 403) << foreign;
  EXPECT_TRUE(is_loopback("127.0.0.2") && is_loopback("::1") && is_loopback("localhost"));
  EXPECT_FALSE(is_loopback("0.0.0.0") || is_loopback("::") || is_loopback("127.example"));
}

TEST_F(HttpTest, HalfClosedClientsAreAnswered) {
  start();
  for (const std::string body : {"whole", "stream"}) {
    ClientConnection connection = connect();
    connection.send(post("/grow", body));
    connection.end_sending();
    const auto growing = text(body);
    std::this_thread::sleep_for(1200ms);
    growing->add("late", Growing::State::ended);
    EXPECT_EQ(connection.answer().body, "late");
  }
}

TEST_F(HttpTest, ClientsThatGoAreNoticed) {
  Options options;
  options.quiet_seconds = 0.2;
  start(options);
  for (const std::string body : {"whole", "stream"}) {
    ClientConnection connection = connect();
    connection.send(post("/grow", body));
    const auto growing = text(body);
    connection.reset();
    expect_soon([&] { return growing->abandoned(); }, body.c_str());
  }
  ClientConnection connection = connect();
  connection.send(post("/grow", "stream closed"));
  const auto growing = text("stream closed");
  connection.close();
  expect_soon([&] { return growing->abandoned(); }, "closed");
}

TEST_F(HttpTest, IdleConnectionsHoldNobodyUp) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  start();
  const int idle = files.rlim_max >= 4096 ? 1000 : 150, begun = files.rlim_max >= 4096 ? 200 : 50;
  std::list<ClientConnection> connections;
  for (int i = 0; i < idle + begun; ++i) {
    connections.emplace_back(port());
    ASSERT_TRUE(connections.back().is_connected()) << i;
    if (i >= idle) connections.back().send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Le");
  }
  double best = 1;
  for (int i = 0; i < 10; ++i) best = std::min(best, seconds_of_health());
  EXPECT_LT(best, 0.05);
  for (int i = 0; i < 4; ++i) {
    connections.emplace_back(port());
    connections.back().send(post("/slow", ""));
  }
  std::this_thread::sleep_for(50ms);
  EXPECT_LT(seconds_of_health(), 0.25) << "handlers of POST hold up those of GET";
  connections.back().answer();
}

TEST_F(HttpTest, ConnectionsTimeOut) {
  Options options;
  options.idle_seconds = 0.5;
  options.read_seconds = 0.3;
  start(options);
  for (const char* begin :
       {"", "GET /hea", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"}) {
    ClientConnection connection = connect();
    connection.send(begin);
    EXPECT_EQ(connection.receive(), "") << begin;
  }
  ClientConnection slow = connect();  // a body may take its time as long as it comes
  slow.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n");
  for (const char* part : {"a", "b", "c", "d", "e"}) {
    std::this_thread::sleep_for(150ms);
    slow.send(part);
  }
  EXPECT_EQ(slow.answer().body, "abcde");
}

TEST_F(HttpTest, ManyStreamsAtOnce) {
  start();
  constexpr int kStreams = 256, kParts = 50;
  std::list<ClientConnection> connections;
  for (int i = 0; i < kStreams; ++i) {
    connections.emplace_back(port());
    connections.back().send(post("/grow", fmt::format("stream {}", i)));
  }
  std::vector<std::shared_ptr<TestText>> texts;
  std::vector<std::string> expected(kStreams);
  for (int i = 0; i < kStreams; ++i) texts.push_back(text(fmt::format("stream {}", i)));
  for (int part = 0; part < kParts; ++part) {
    for (int i = 0; i < kStreams; ++i) {
      const std::string event = fmt::format("data: {} of {}\n\n", part, i);
      expected[static_cast<std::size_t>(i)] += event;
      texts[static_cast<std::size_t>(i)]->add(event);
    }
  }
  for (const auto& one : texts) one->end();
  std::size_t i = 0;
  for (ClientConnection& connection : connections) {
    const ClientAnswer answer = connection.answer();
    EXPECT_TRUE(answer.is_whole);
    EXPECT_EQ(answer.body, expected[i++]);
  }
}

TEST_F(HttpTest, SlowReadersGetAll) {
  start();
  ClientConnection slow = connect(4096);
  slow.send(post("/grow", "stream"));
  const auto growing = text("stream");
  std::string expected;
  for (int i = 0; i < 1000; ++i) {
    const std::string part(10000, static_cast<char>('a' + i % 26));
    growing->add(part);
    expected += part;
  }
  growing->end();
  std::this_thread::sleep_for(500ms);
  EXPECT_LT(seconds_of_health(), 0.25);
  const ClientAnswer answer = slow.answer();
  EXPECT_TRUE(answer.is_whole);
  EXPECT_TRUE(answer.body == expected) << answer.body.size();
  server_.reset();

  Options options;
  options.write_seconds = 0.5;  // the limit of those that never read
  start(options);
  ClientConnection never = connect(4096);
  texts_.clear();
  never.send(post("/grow", "stream"));
  const auto unread = text("stream");
  unread->add(std::string(20 << 20, 'x'));
  expect_soon([&] { return unread->abandoned(); }, "cut");
}

TEST_F(HttpTest, StopsWhenAnswersAreDone) {
  Options options;
  options.stop_seconds = 0.5;
  start(options);
  ClientConnection idle = connect(), stream = connect(), stuck = connect(4096);
  const int at = port();
  stream.send(post("/grow", "stream"));
  stuck.send(post("/grow", "stream stuck"));
  const auto growing = text("stream");
  text("stream stuck")->add(std::string(20 << 20, 'x'));
  std::this_thread::sleep_for(100ms);
  server_->stop();
  EXPECT_EQ(idle.receive(), "");
  expect_soon([&] { return !ClientConnection(at).is_connected(); }, "listens no more");
  growing->add("the rest", Growing::State::ended);
  EXPECT_EQ(stream.answer().body, "the rest");
  server_.reset();
}

// An answer that never ends must not keep the server.
TEST_F(HttpTest, GivesUpAnswersWithoutNewsOnceItStops) {
  Options options;
  options.stop_seconds = 0.3;
  start(options);
  ClientConnection stream = connect(), whole = connect();
  stream.send(post("/grow", "stream"));
  whole.send(post("/grow", "whole"));
  text("stream")->add("half");
  text("whole");
  const auto begin = std::chrono::steady_clock::now();
  server_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_FALSE(stream.answer().is_whole);
  expect_error(whole.answer(), 503, "given this answer up");
}

// Clients of a path know the form of its errors, whoever finds them.
TEST_F(HttpTest, APathHasItsOwnFormOfErrors) {
  Options options;
  options.keys.add("k");
  options.most_body = 1000;
  start(options,
        {{"/echo",
          [](int status, const Problem& problem) {
            return fmt::format("{} own {}|{}|{}", status, problem.message, problem.field, problem.code);
          }},
         {"/bad", [](int status, const Problem& problem) {
            return fmt::format("{} own {}|{}|{}", status, problem.message, problem.field, problem.code);
          }}});
  const auto own = [&](const ClientAnswer& answer, int status) {
    EXPECT_EQ(answer.status, status);
    EXPECT_TRUE(answer.body.starts_with(fmt::format("{} own ", status))) << answer.body;
  };
  const std::string key = "x-api-key: k\r\n";
  own(client().post("/echo", ""), 401);
  own(client().request("POST", "/echo/below", key), 404);
  own(client().request("GET", "/echo", key), 405);
  own(client().request("POST", "/echo", key, std::string(1001, 'x')), 413);
  own(client().request("POST", "/echo", key + "Content-Encoding: gzip\r\n", "x"), 415);
  own(client().request("POST", "/echo", key + "Origin: http://other\r\n", "x"), 403);
  EXPECT_EQ(client().request("POST", "/bad", key).body, "422 own n: expected one|n|too_many");
  ClientConnection two_hosts = connect();
  two_hosts.send("POST /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
  own(two_hosts.answer(), 400);
  expect_error(client().request("POST", "/echoes", key), 404, "expected one of");
}

// What costs much has threads of its own.
TEST_F(HttpTest, SmallRequestsDoNotWaitForHeavyOnes) {
  start();
  std::vector<std::unique_ptr<ClientConnection>> heavy;
  for (int i = 0; i < 8; ++i) {
    heavy.push_back(std::make_unique<ClientConnection>(port()));
    heavy.back()->send(post("/slow", std::string(100000, 'x')));
  }
  std::this_thread::sleep_for(50ms);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(client().post("/echo", "small").body, "small");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 600ms);
  for (const auto& one : heavy) EXPECT_EQ(one->answer().body, "slow");
}

TEST(Errors, HaveOneLine) {
  const Response error = error_response(400, "a\nb\r" + std::string(10000, 'x'));
  const std::string message = json::parse(error.body)["error"]["message"];
  EXPECT_TRUE(message.starts_with("a b x"));
  EXPECT_EQ(message.size(), 4000u);
  EXPECT_EQ(error.problem->message, message);
}

TEST(Hosts, StandInAddresses) {
  EXPECT_EQ(host_in_url("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(host_in_url("::1"), "[::1]");
  EXPECT_EQ(host_in_url("::"), "[::]");
  EXPECT_EQ(host_in_url("fe80::1%eth0"), "[fe80::1%25eth0]");
  EXPECT_EQ(host_in_url("::ffff:127.0.0.1"), "[::ffff:127.0.0.1]");
  for (const char* host :
       {"127.0.0.1", "127.9.9.9", "localhost", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"})
    EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"0.0.0.0", "::", "::2", "::ffff:10.0.0.1", "fe80::1%eth0", "127.example.org"})
    EXPECT_FALSE(is_loopback(host)) << host;
}

TEST_F(HttpTest, RandomBytes) {
  start();
  std::mt19937 random(1);
  const std::string whole = post("/echo", "{\"a\": 1}", "x-one: two\r\n");
  const auto draw = [&](std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(random);
  };
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = whole;
    for (std::size_t change = draw(8); change > 0; --change)
      bytes[draw(bytes.size())] = static_cast<char>(draw(256));
    bytes = bytes.substr(0, draw(4) == 0 ? draw(bytes.size()) : bytes.size());
    ClientConnection connection = connect();
    connection.send(bytes);
    connection.end_sending();
    connection.receive_all();
  }
  EXPECT_EQ(client().get("/health").body, "ok");
}

// A key and a certificate for it, as PEM files.
void write_certificate(const std::string& certificate_file, const std::string& key_file) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_sign(certificate.get(), key.get(), EVP_sha256());
  std::FILE* file = std::fopen(certificate_file.c_str(), "w");
  PEM_write_X509(file, certificate.get());
  std::fclose(file);
  file = std::fopen(key_file.c_str(), "w");
  PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
}

TEST_F(HttpTest, AnswersThroughTls) {
  Options options;
  options.tls_certificate = ::testing::TempDir() + "http_certificate.pem";
  EXPECT_THROW(start(options), Error);
  options.tls_key = ::testing::TempDir() + "http_key.pem";
  write_certificate(options.tls_certificate, options.tls_key);
  start(options);
  ClientConnection stalled = connect();  // never shakes hands
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> wire(BIO_new_ssl_connect(context.get()), BIO_free_all);
  BIO_set_conn_hostname(wire.get(), fmt::format("127.0.0.1:{}", port()).c_str());
  ASSERT_EQ(BIO_do_connect(wire.get()), 1);
  const std::string request = post("/grow", "stream", "", 0);
  ASSERT_EQ(BIO_write(wire.get(), request.data(), static_cast<int>(request.size())),
            static_cast<int>(request.size()));
  const std::string large(1 << 20, 'x');
  text("stream")->add(large);
  text("stream")->end();
  std::string all;
  std::vector<char> buffer(65536);
  for (int size; (size = BIO_read(wire.get(), buffer.data(), 65536)) > 0;)
    all.append(buffer.data(), static_cast<std::size_t>(size));
  EXPECT_TRUE(all.ends_with("\r\n\r\n" + large)) << all.size();
  std::filesystem::remove(options.tls_key);
  EXPECT_THROW(Server(options, {}), Error);
}

}  // namespace
}  // namespace switchyard::http
