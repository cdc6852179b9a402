// The HTTP side of `serve`: its routes, from requests to texts in the queue.
// http_server.cc has the table of routes.
#pragma once

#include <memory>
#include <string>

#include "serve/http/options.h"
#include "serve/served_model.h"
#include "serve/statistics.h"
#include "serve/texts.h"

namespace switchyard::serve {

class HttpServer {
 public:
  // Binds the address; Error(usage) where that fails. The other arguments must outlive the server.
  HttpServer(const http::Options& options, const ServedModel& model, Inbox& queue,
             const Statistics& statistics);
  // Waits for answers that are on their way: the queue must be done, or its texts must go on.
  ~HttpServer();
  // Answers from now on. Connections that came before have waited.
  void start();
  int port() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::serve
