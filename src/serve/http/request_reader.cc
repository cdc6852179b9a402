#include "serve/http/request_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <charconv>
#include <limits>

#include "core/error.h"

namespace switchyard::http {
namespace {

namespace beast_http = boost::beast::http;

std::string text_of(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

// http://HOST/PATH, as a proxy is asked, is /PATH.
std::string without_host(const std::string& target) {
  const std::size_t scheme = target.find("://");
  if (target.starts_with('/') || scheme == std::string::npos) return target;
  const std::size_t path = target.find('/', scheme + 3);
  return path == std::string::npos ? "/" : target.substr(path);
}

}  // namespace

struct RequestReader::Parser {
  beast_http::request_parser<beast_http::string_body> request;
};

std::optional<std::string> decode_path(std::string_view path) {
  std::string decoded;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path[i] != '%') {
      decoded += path[i];
      continue;
    }
    unsigned byte = 0;
    const std::string_view digits = path.substr(i + 1, 2);
    const char* const end = digits.data() + digits.size();
    if (digits.size() < 2 || std::from_chars(digits.data(), end, byte, 16).ptr != end) return {};
    decoded += static_cast<char>(byte);
    i += 2;
  }
  return decoded;
}

RequestReader::RequestReader(std::size_t most_head, std::size_t most_body)
    : most_head_(most_head), most_body_(most_body) {
  next();
}

RequestReader::~RequestReader() = default;

void RequestReader::next() {
  parser_ = std::make_unique<Parser>();
  parser_->request.header_limit(static_cast<std::uint32_t>(most_head_));
  // The parser would refuse a body with the head; it is refused here after all else has been looked at.
  parser_->request.body_limit(std::numeric_limits<std::uint64_t>::max());
  request_ = {};
  at_ = At::head;
}

void RequestReader::add(std::string_view bytes) {
  bytes_ += bytes;
}

bool RequestReader::has_begun() const {
  return !bytes_.empty() || at_ != At::head || parser_->request.got_some();
}

RequestReader::Step RequestReader::refuse(int status, const std::string& message) {
  refusal_ = error_response(status, message);
  return Step::bad;
}

RequestReader::Step RequestReader::advance() {
  if (at_ == At::end) return Step::whole;
  if (at_ == At::checked) return Step::head;
  auto& parser = parser_->request;
  if (at_ == At::head && !parser.got_some())  // line ends before a request do not count
    bytes_.erase(0, std::min(bytes_.find_first_not_of("\r\n"), bytes_.size()));
  boost::beast::error_code problem;
  std::size_t taken = 0;
  // The parser stops after each chunk and at the end of the head.
  while (taken < bytes_.size() && !parser.is_done() && !(at_ == At::head && parser.is_header_done())) {
    const std::size_t now =
        parser.put(boost::asio::buffer(bytes_.data() + taken, bytes_.size() - taken), problem);
    taken += now;
    if (problem || now == 0) break;
  }
  bytes_.erase(0, taken);
  if (problem == beast_http::error::need_more) problem = {};
  if (problem == beast_http::error::header_limit)
    return refuse(431, fmt::format("the request's headers have more than {} bytes", most_head_));
  if (problem) return refuse(400, fmt::format("this is no request of HTTP: {}", problem.message()));
  if (at_ == At::head) {
    if (!parser.is_header_done()) return Step::more;
    take_head();
    if (!refusal_.body.empty()) return Step::bad;
    at_ = At::checked;
    return Step::head;
  }
  if (parser.get().body().size() > most_body_ || bytes_.size() > most_body_ + most_head_)
    return refuse(413, fmt::format("the body has more than {} bytes", most_body_));
  if (!parser.is_done()) return Step::more;
  at_ = At::end;
  request_.body = std::move(parser.get().body());
  return Step::whole;
}

void RequestReader::take_head() {
  const auto& head = parser_->request.get();
  request_.method = text_of(head.method_string());
  request_.version = static_cast<int>(head.version());
  request_.keep_alive = head.keep_alive();
  if (request_.version != 10 && request_.version != 11) refuse(505, "expected HTTP/1.0 or HTTP/1.1");
  const std::string target = without_host(text_of(head.target()));
  const std::size_t query = std::min(target.find('?'), target.size());
  const auto path = decode_path(std::string_view(target).substr(0, query));
  if (!path) refuse(400, fmt::format("{}: expected two digits of base 16 after each %", target));
  request_.path = path.value_or("");
  request_.query = target.substr(std::min(query + 1, target.size()));
  for (const auto& field : head) {
    std::string name = text_of(field.name_string());
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    request_.headers.push_back({std::move(name), text_of(field.value())});
  }
  const auto hosts = std::ranges::count(request_.headers, "host", &Headers::value_type::first);
  if (hosts > 1) refuse(400, "expected one Host header");
}

bool RequestReader::has_body() const {
  CHECK(at_ != At::head);
  return !parser_->request.is_done();
}

bool RequestReader::awaits_continue() const {
  const std::string* const expected = request_.header("expect");
  return request_.version >= 11 && has_body() && bytes_.empty() && expected != nullptr &&
         (*expected == "100-continue" || *expected == "100-Continue");
}

bool RequestReader::read_body() {
  CHECK(at_ == At::checked);
  at_ = At::body;
  const auto length = parser_->request.content_length();
  if (!length || *length <= most_body_) return true;
  refuse(413, fmt::format("the body has {} bytes: expected at most {}", *length, most_body_));
  return false;
}

}  // namespace switchyard::http
