// The HTTP side of `serve`: GET /health, /v1/models, /metrics and POST /v1/completions.
#pragma once

#include <memory>
#include <string>

#include "serve/api.h"
#include "serve/batcher.h"
#include "serve/engine.h"

namespace switchyard::serve {

class HttpServer {
 public:
  struct Address {
    std::string host;
    int port = 0;  // 0: any that is free
  };
  // Takes the address; Error(usage) where it cannot. All arguments must outlive it.
  HttpServer(const Address& address, const ServedModel& model, Batcher& batcher, const ExpertRows& experts,
             int connections);
  // Waits for answers that are on their way: the batcher must be done, or go on.
  ~HttpServer();
  // Answers from now on; what came before has waited.
  void start();
  int port() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// As Prometheus reads them.
std::string metrics_text(const BatcherCounts& counts, const std::vector<ExpertRows::Layer>& experts);

}  // namespace switchyard::serve
