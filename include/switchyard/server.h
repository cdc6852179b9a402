// A model that answers over HTTP, in threads of this process (docs/http.md).
//
//   Server server = Server::start({"FOLDER", "--port", "0"});
#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "switchyard/error.h"

namespace switchyard {

// Any thread may call it. It prints nothing and catches no signals.
class Server {
 public:
  // Starts what `switchyard serve` with these words is, and returns when it answers. When `stop` is asked for
  // before all weights are read, it throws Error(runtime). Error(usage) for wrong words, and in a program
  // that mpirun started more than once.
  static Server start(const std::vector<std::string>& words, const std::stop_token& stop = {});
  Server(Server&&) noexcept;
  Server& operator=(Server&&) = delete;
  ~Server();  // close()

  std::string url() const;  // "http://127.0.0.1:8000"
  std::string stats()
      const;  // JSON: texts running, waiting, finished, …; tokens and seconds; the cache's use
  const std::vector<std::string>& notes() const;  // about the start
  // Finishes the texts that are being made, drops those that wait, and frees the model. After it the other
  // functions are still right. Throws the error that ended the server before, if one did.
  void close();

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace switchyard
