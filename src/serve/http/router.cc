#include "serve/http/router.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <cstdio>

#include "chat/bad_request.h"
#include "core/messages.h"

namespace switchyard::http {
namespace {

constexpr std::string_view kName = "NAME";

bool equal_words(const std::string& a, const std::string& b) {
  return ::strcasecmp(a.c_str(), b.c_str()) == 0;
}

bool is_address(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return ::inet_pton(AF_INET, host.c_str(), bytes) == 1 || ::inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

// Returns a Host header's name without port and brackets.
std::string name_of_host(const std::string& header) {
  if (header.starts_with('[')) return header.substr(1, header.find(']') - 1);
  return header.substr(0, header.rfind(':'));
}

bool matches(const std::string& pattern, const std::string& path, std::string& name) {
  if (!pattern.ends_with(kName)) return pattern == path;
  const std::string_view begin = std::string_view(pattern).substr(0, pattern.size() - kName.size());
  if (!path.starts_with(begin) || path.size() == begin.size()) return false;
  name = path.substr(begin.size());
  return true;
}

bool has_method(const Route& route, const std::string& method) {
  return route.method == method || (route.method == "GET" && method == "HEAD");
}

// Returns those of the headers `wanted` that a page may send: OpenAI's and Anthropic's clients send some with
// names of their own.
std::string allowed_headers(const std::string& wanted) {
  std::string allowed = "authorization, content-type, x-api-key";
  std::size_t begin = 0;
  while (begin < wanted.size()) {
    const std::size_t end = std::min(wanted.find(',', begin), wanted.size());
    std::string name = wanted.substr(begin, end - begin);
    std::erase(name, ' ');
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    if (name.starts_with("x-stainless-") || name.starts_with("anthropic-")) allowed += ", " + name;
    begin = end + 1;
  }
  return allowed;
}

std::optional<Response> refused_body(const Request& request) {
  const std::string* const type = request.header("content-type");
  if (type != nullptr && type->starts_with("multipart/"))
    return error_response(400, "the body is not JSON but parts of a form");
  const std::string* const coding = request.header("content-encoding");
  if (coding != nullptr && *coding != "identity")
    return error_response(415, fmt::format("content-encoding: expected none, got {}", *coding));
  return {};
}

}  // namespace

bool is_loopback(const std::string& host) {
  in6_addr address{};
  if (::inet_pton(AF_INET6, host.c_str(), &address) == 1)
    return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
  return equal_words(host, "localhost") || (is_address(host) && host.starts_with("127."));
}

std::string host_in_url(const std::string& host) {
  if (host.find(':') == std::string::npos) return host;
  std::string shown = host;
  if (const std::size_t zone = shown.find('%'); zone != std::string::npos) shown.replace(zone, 1, "%25");
  return "[" + shown + "]";
}

Router::Router(const Options& options, std::vector<Route> routes, std::vector<ErrorForm> forms)
    : options_(options),
      loopback_(is_loopback(options.host)),
      routes_(std::move(routes)),
      forms_(std::move(forms)) {
  for (const Route& route : routes_)
    endpoints_ += fmt::format("{}{} {}", endpoints_.empty() ? "" : ", ", route.method, route.path);
}

// A page may have a name of its own site lead to this machine. Names without a dot are only known to the
// network that this machine is in: no foreign site has one.
bool Router::is_known_host(const std::string& host) const {
  const auto is_same = [&](const std::string& name) { return equal_words(name, host); };
  return host.find('.') == std::string::npos || is_address(host) || host.ends_with(".localhost") ||
         std::ranges::any_of(options_.host_names, is_same);
}

std::optional<Response> Router::refused_host(const Request& request) const {
  const std::string* const header = request.header("host");
  if (header == nullptr) {
    if (request.version < 11) return {};
    return error_response(400, "a request of HTTP/1.1 without a Host header");
  }
  const std::string host = name_of_host(*header);
  if (!loopback_ || is_known_host(host)) return {};
  return error_response(403,
                        fmt::format("Host: expected an address, localhost, or a name given to --host-name, "
                                    "since only this machine is listened to; got {}",
                                    host),
                        "", "foreign_host");
}

bool Router::is_allowed_origin(const std::string& origin) const {
  return std::ranges::any_of(options_.origins,
                             [&](const std::string& one) { return one == "*" || equal_words(one, origin); });
}

bool Router::has_key(Request& request) const {
  if (options_.keys.empty()) return true;
  constexpr const char* kBearer = "Bearer ";
  if (const std::string* const given = request.header("authorization");
      given != nullptr && ::strncasecmp(given->c_str(), kBearer, 7) == 0)
    request.key = options_.keys.find(std::string_view(*given).substr(7));
  if (const std::string* const given = request.header("x-api-key"); given != nullptr && !request.key)
    request.key = options_.keys.find(*given);
  return request.key.has_value();
}

std::string Router::methods_of(const std::string& path) const {
  std::string methods, name;
  for (const Route& route : routes_) {
    if (path == "*" || !matches(route.path, path, name)) continue;
    methods += route.method == "GET" ? "GET, HEAD, " : route.method + ", ";
  }
  return path == "*" ? "GET, HEAD, POST, DELETE, OPTIONS" : methods.empty() ? "" : methods + "OPTIONS";
}

Response Router::options_answer(const Request& request, const std::string& allowed) const {
  Response response{204};
  response.headers.push_back({"Allow", allowed});
  const std::string* const origin = request.header("origin");
  if (origin == nullptr || !is_allowed_origin(*origin)) return response;
  const std::string* const wanted = request.header("access-control-request-headers");
  response.headers.push_back({"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"});
  response.headers.push_back(
      {"Access-Control-Allow-Headers", allowed_headers(wanted == nullptr ? "" : *wanted)});
  response.headers.push_back({"Access-Control-Max-Age", "600"});
  return response;
}

Router::Found Router::find(Request& request) const {
  if (auto refusal = refused_host(request)) return {nullptr, *refusal};
  const std::string methods = methods_of(request.path);
  if (request.method == "OPTIONS" && !methods.empty()) return {nullptr, options_answer(request, methods)};
  const auto route = std::ranges::find_if(routes_, [&](const Route& one) {
    return has_method(one, request.method) && matches(one.path, request.path, request.name);
  });
  if (request.method == "POST" || request.method == "DELETE") {
    const std::string* const origin = request.header("origin");
    const std::string* const host = request.header("host");
    const bool is_own = origin != nullptr && host != nullptr &&
                        (equal_words(*origin, "http://" + *host) || equal_words(*origin, "https://" + *host));
    if (origin != nullptr && !is_own && !is_allowed_origin(*origin))
      return {nullptr, error_response(403, fmt::format("a page of {} may not ask here: see --cors", *origin),
                                      "", "foreign_origin")};
  }
  const bool is_open =
      route != routes_.end() &&
      (route->access == Access::open || (route->access == Access::monitoring && !options_.protect_metrics));
  if (!has_key(request) && !is_open) {
    Response refusal = error_response(401, "expected a key: Authorization: Bearer KEY, or x-api-key: KEY", "",
                                      "invalid_api_key");
    refusal.headers.push_back({"WWW-Authenticate", "Bearer"});
    return {nullptr, refusal};
  }
  if (route == routes_.end()) {
    const std::string what = request.method + " " + request.path;
    if (methods.empty())
      return {nullptr, error_response(404, fmt::format("{}: expected one of {}", what, endpoints_))};
    Response refusal = error_response(405, fmt::format("{}: expected one of {}", what, methods));
    refusal.headers.push_back({"Allow", methods});
    return {nullptr, refusal};
  }
  if (request.method == "POST") {
    if (auto refusal = refused_body(request)) return {nullptr, *refusal};
  }
  return {&*route, {}};
}

Answer Router::call(const Route& route, Request& request) const {
  try {
    return route.handler(request);
  } catch (const chat::BadRequest& error) {
    const bool is_value = error.code.empty() && error.status == 400 && !error.field.empty();
    return error_response(error.status, error.what(), error.field, is_value ? "invalid_value" : error.code);
  } catch (const std::exception& error) {
    say("{} {} failed: {}", route.method, route.path, error.what());
    return error_response(500, "the server failed to answer; its log says why");
  }
}

void Router::shape_error(const std::string& path, Response& response) const {
  if (!response.problem) return;
  for (const ErrorForm& form : forms_) {
    const bool is_below =
        path.starts_with(form.path) && (path.size() == form.path.size() || path[form.path.size()] == '/');
    if (is_below) response.body = form.body(response.status, *response.problem);
  }
}

void Router::allow_page(const Request& request, Headers& headers) const {
  if (options_.origins.empty()) return;
  headers.push_back({"Vary", "Origin"});
  const std::string* const origin = request.header("origin");
  if (origin == nullptr || !is_allowed_origin(*origin)) return;
  headers.push_back({"Access-Control-Allow-Origin", *origin});
}

}  // namespace switchyard::http
