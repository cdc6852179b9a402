// The public Server: a TextServer with a thread.
#include "switchyard/server.h"

#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "commands/text_server.h"
#include "core/error.h"

namespace switchyard {

struct Server::State {
  std::unique_ptr<Processes> processes = one_process();
  std::unique_ptr<TextServer> server;
  std::vector<std::string> notes = {};
  std::string url = {}, last_stats = {};
  std::future<void> work = {};
  mutable std::mutex mutex = {};  // guards `server`, `last_stats` and `work`

  void close() {
    const std::scoped_lock lock(mutex);
    if (server == nullptr) return;
    server->close();
    std::future<void> ending = std::move(work);
    if (ending.valid()) ending.wait();
    last_stats = server->stats().dump();
    server.reset();
    if (ending.valid()) ending.get();
  }
  ~State() {
    try {
      close();
    } catch (const std::exception&) {  // nobody asks any more what ended it
    }
  }
};

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}
Server::Server(Server&&) noexcept = default;
Server::~Server() = default;

Server Server::start(const std::vector<std::string>& words, const std::stop_token& stop) {
  if (const int processes = launch_from_environment().processes; processes != 1)
    fail_usage("[serve] expected a program of one process, got {}", processes);
  const Options options = serve_options(words);
  if (options.help) fail_usage("[serve] --help: expected a model; the program has the page");
  auto state = std::make_unique<State>();
  state->server = std::make_unique<TextServer>(options, *state->processes);
  TextServer& server = *state->server;
  server.model().fill = stoppable(server.model().fill, stop, "serve");
  std::promise<void> is_ready;
  std::future<void> ready = is_ready.get_future();
  std::vector<std::string>& notes = state->notes;
  state->work = std::async(std::launch::async, [&server, &notes, is_ready = std::move(is_ready)]() mutable {
    bool told = false;
    try {
      server.run({.tell = [&](const std::string& note) { notes.push_back(note); },
                  .ready =
                      [&](const Startup&) {
                        told = true;
                        is_ready.set_value();
                      }});
    } catch (...) {
      if (told) throw;
      is_ready.set_exception(std::current_exception());
    }
  });
  ready.get();
  state->url = server.url();
  return Server(std::move(state));
}

std::string Server::url() const {
  return state_->url;
}

std::string Server::stats() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->server == nullptr ? state_->last_stats : state_->server->stats().dump();
}

const std::vector<std::string>& Server::notes() const {
  return state_->notes;
}

void Server::close() {
  state_->close();
}

}  // namespace switchyard
