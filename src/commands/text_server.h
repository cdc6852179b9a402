// TextServer: what `serve` is, without a program's signals and printed lines.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "commands/serving.h"
#include "serve/http_server.h"

namespace switchyard {

Options serve_options(std::span<const std::string> args);

class TextServer {
 public:
  // Opens the model and, on process 0, takes the port. Error(usage).
  TextServer(const Options& options, Processes& processes);

  ModelOnRanks& model() { return serving_.run; }
  // Loads the weights and answers until close(). Once.
  void run(const ServingHooks& hooks);
  // Takes no more texts: run() returns when those that are being made are finished. Any thread may call it.
  void close() { inbox_->close(); }

  // Process 0 has these. Any thread may call them.
  std::string url() const;
  nlohmann::ordered_json stats() const;
  std::string farewell() const;  // one line about all texts

 private:
  Processes& processes_;
  const std::string json_file_;
  http::Options listening_;
  Serving serving_;
  std::optional<serve::Statistics> statistics_;
  std::optional<texts::Inbox> inbox_;
  std::optional<serve::HttpServer> http_;  // ends first
};

}  // namespace switchyard
