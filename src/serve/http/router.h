// Finds the handler of a request, or the reason why it gets none: no such path, no key, another site's page.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "serve/http/message.h"
#include "serve/http/options.h"

namespace switchyard::http {

// open: for everybody. monitoring: behind a key with Options::protect_metrics only.
enum class Access { open, monitoring, key };

struct Route {
  std::string method;  // GET (and with it HEAD), POST or DELETE
  std::string path;    // NAME at its end stands for any text
  // May throw chat::BadRequest, which becomes an answer; anything else is status 500. Handlers of POST and
  // DELETE run on the pool and may take their time; those of GET hold up other connections.
  std::function<Answer(Request&)> handler;
  Access access = Access::key;
  // Returns the cost of a POST's handler, in bytes of a plain body (Lanes). Empty: the body's bytes.
  std::function<std::size_t(const Request&)> cost = {};
};

class Router {
 public:
  Router(const Options& options, std::vector<Route> routes, std::vector<ErrorForm> forms = {});

  struct Found {
    const Route* route = nullptr;
    Response refusal = {};  // where there is no route
  };
  // Looks at a request's head. Sets its `name` and `key`.
  Found find(Request& request) const;
  // Runs the handler. Does not throw.
  Answer call(const Route& route, Request& request) const;
  // Gives an error the form that the path's clients read. No other place knows which path has which form.
  void shape_error(const std::string& path, Response& response) const;
  // Adds the headers that let the page that asks read the answer.
  void allow_page(const Request& request, Headers& headers) const;

 private:
  bool is_known_host(const std::string& host) const;
  bool is_allowed_origin(const std::string& origin) const;
  std::optional<Response> refused_host(const Request& request) const;
  bool has_key(Request& request) const;
  Response options_answer(const Request& request, const std::string& allowed) const;
  std::string methods_of(const std::string& path) const;

  const Options& options_;
  const bool loopback_;
  std::vector<Route> routes_;
  std::vector<ErrorForm> forms_;
  std::string endpoints_;
};

}  // namespace switchyard::http
