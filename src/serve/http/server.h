// A server of HTTP/1.1 and 1.0 that knows nothing of models: it listens, reads requests, has the routes'
// handlers answer them, and writes answers, also those that grow. A few threads serve all connections.
#pragma once

#include <memory>
#include <vector>

#include "serve/http/message.h"
#include "serve/http/options.h"
#include "serve/http/router.h"

namespace switchyard::http {

class Server {
 public:
  // Binds the address and listens; Error(usage) where it cannot, and for TLS files that are none.
  Server(const Options& options, std::vector<Route> routes, std::vector<ErrorForm> forms = {});
  // Stops, and waits for the answers that are under way; a growing one without news
  // for stop_seconds is given up.
  ~Server();
  // Answers from now on. Connections that came before have waited. Raises the process's limit of open files.
  void start();
  // Takes no more connections and closes those without a request; the others end with their answer.
  void stop();
  int port() const;
  // True when the build has TLS.
  static bool knows_tls();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::http
