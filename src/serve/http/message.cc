#include "serve/http/message.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

namespace switchyard::http {
namespace {

constexpr std::size_t kLongestMessage = 4000;  // bytes

const char* type_of_error(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

const char* reason_of(int status) {
  constexpr std::pair<int, const char*> kReasons[] = {{200, "OK"},
                                                      {204, "No Content"},
                                                      {400, "Bad Request"},
                                                      {401, "Unauthorized"},
                                                      {403, "Forbidden"},
                                                      {404, "Not Found"},
                                                      {405, "Method Not Allowed"},
                                                      {413, "Content Too Large"},
                                                      {415, "Unsupported Media Type"},
                                                      {429, "Too Many Requests"},
                                                      {431, "Request Header Fields Too Large"},
                                                      {500, "Internal Server Error"},
                                                      {501, "Not Implemented"},
                                                      {503, "Service Unavailable"},
                                                      {505, "HTTP Version Not Supported"}};
  const auto found = std::ranges::find(kReasons, status, &std::pair<int, const char*>::first);
  return found == std::end(kReasons) ? "Status" : found->second;
}

// A header's value may hold what a request wrote, and must not begin another header.
std::string on_one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }, ' ');
  return text;
}

}  // namespace

const std::string* Request::header(std::string_view header_name) const {
  const auto found = std::ranges::find(headers, header_name, &Headers::value_type::first);
  return found == headers.end() ? nullptr : &found->second;
}

Response error_response(int status, const std::string& message, const std::string& field,
                        const std::string& code) {
  using nlohmann::json;
  const std::string shown =
      on_one_line(message.substr(0, kLongestMessage));  // it may hold what a request wrote
  const json error{{"message", shown},
                   {"type", type_of_error(status)},
                   {"param", field.empty() ? json() : json(field)},
                   {"code", code.empty() ? json() : json(code)}};
  Response response{status,
                    json{{"error", error}}.dump(-1, ' ', false, json::error_handler_t::replace) + "\n"};
  response.problem = {shown, field, code};
  return response;
}

std::string head_text(const Response& response, const Request& request, std::optional<std::size_t> length,
                      bool keep_alive) {
  const bool is_old = request.version < 11;
  std::string head =
      fmt::format("HTTP/1.{} {} {}\r\nDate: {:%a, %d %b %Y %H:%M:%S GMT}\r\n", is_old ? 0 : 1,
                  response.status, reason_of(response.status), fmt::gmtime(std::time(nullptr)));
  const bool has_body = response.status != 204;
  if (has_body) head += fmt::format("Content-Type: {}\r\n", on_one_line(response.content_type));
  if (has_body && length) head += fmt::format("Content-Length: {}\r\n", *length);
  if (has_body && !length && !is_old) head += "Transfer-Encoding: chunked\r\n";
  if (!keep_alive) {
    head += "Connection: close\r\n";
  } else if (is_old) {
    head += "Connection: keep-alive\r\n";
  }
  for (const auto& [name, value] : response.headers)
    head += fmt::format("{}: {}\r\n", name, on_one_line(value));
  return head + "\r\n";
}

std::string chunk_text(std::string_view text) {
  return fmt::format("{:x}\r\n{}\r\n", text.size(), text);
}

}  // namespace switchyard::http
