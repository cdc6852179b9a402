// The HTTP side of `serve`: listens, reads requests, and writes answers.
// http_server.cc has the table of routes.
#pragma once

#include <memory>
#include <string>

#include "serve/request_queue.h"
#include "serve/served_model.h"
#include "serve/statistics.h"

namespace switchyard::serve {

class HttpServer {
 public:
  struct Address {
    std::string host;
    int port = 0;  // 0: any free one
  };
  // Binds the address; Error(usage) where it cannot. All arguments must outlive the server.
  HttpServer(const Address& address, const ServedModel& model, RequestQueue& queue,
             const Statistics& statistics, int connections);
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
