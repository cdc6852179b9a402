// A client's bytes, whatever they are, are read as requests and answered or refused alike, however they are
// cut into pieces.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.h"
#include "serve/http/request_reader.h"
#include "serve/http/router.h"

namespace {

using namespace switchyard;
using http::RequestReader;
using Step = RequestReader::Step;

constexpr std::size_t kMostHead = 4096, kMostBody = 4096;

const http::Router& router() {
  static const http::Options options = [] {
    http::Options all;
    all.keys.add("key");
    all.origins = {"http://page.example"};
    return all;
  }();
  const auto echo = [](http::Request& request) {
    return http::Response{200, request.name + request.query + request.body};
  };
  static const http::Router all(options, {{"GET", "/health", echo, http::Access::open},
                                          {"GET", "/things/NAME", echo},
                                          {"POST", "/echo", echo, http::Access::open}});
  return all;
}

std::string text_of(http::Response response, const http::Request& request) {
  router().allow_page(request, response.headers);
  const std::string head = http::head_text(response, request, response.body.size(), request.keep_alive);
  const std::size_t end = head.find("\r\n\r\n");
  CHECK(end + 4 == head.size(), "the head ends early: {}", head);
  return head.substr(head.find("\r\nDate: ") + 37) + response.body + "\n";  // without the line of the time
}

// Returns what the connection would be answered.
std::string answers_to(std::string_view bytes, std::size_t at_once) {
  RequestReader reader(kMostHead, kMostBody);
  std::string answers;
  for (;;) {
    Step step = reader.advance();
    if (step == Step::more) {
      if (bytes.empty()) return answers;
      reader.add(bytes.substr(0, at_once));
      bytes.remove_prefix(std::min(at_once, bytes.size()));
      continue;
    }
    if (step == Step::bad) return answers + reader.refusal().body;
    if (step == Step::head) {
      const http::Router::Found found = router().find(reader.request());
      const bool has_body = reader.has_body();
      if (found.route == nullptr) answers += text_of(found.refusal, reader.request());
      if (found.route == nullptr && has_body) return answers;
      if (!reader.read_body()) return answers + reader.refusal().body;
      continue;
    }
    http::Request& request = reader.request();
    CHECK(request.body.size() <= kMostBody, "{} bytes", request.body.size());
    if (const http::Router::Found found = router().find(request); found.route != nullptr)
      answers += text_of(std::get<http::Response>(router().call(*found.route, request)), request);
    reader.next();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string at_once = answers_to(bytes, size + 1), in_parts = answers_to(bytes, 7);
  // The reader may notice sooner or later that bytes are no request.
  CHECK(at_once.starts_with(in_parts) || in_parts.starts_with(at_once), "at once: {}\nin parts: {}", at_once,
        in_parts);
  return 0;
}
