// Core: an engine that the module's objects share and that may be closed, and the rules for calls to the
// engine.
//
// 1. Members are read and written with the GIL held. Work runs without it, on a reference of its own, so a
//    close() while another thread works takes nothing from under that work.
// 2. While Python shuts down it kills threads that ask for the GIL, and a C++ frame does not survive that. So
//    shut_down() ends all work and waits until no thread is without the GIL in here. A daemon thread whose
//    work ends then goes to sleep for good: with a result, it would run on in an interpreter that ends.
// 3. After a fork the child has the memory of the engine and none of its threads: its calls throw, and it
//    leaves engine and streams alone.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/engine.h"

namespace switchyard::python {

namespace nb = nanobind;

// A token may be a part of a character. Such bytes become U+FFFD.
nb::str to_text(std::string_view text);

// Gives Python's logger what the engine's threads said, which never take the GIL. Called with the GIL.
void hand_over_messages();

// Parts of the module in files of their own.
void define_commands(nb::module_& module);
void define_messages(nb::module_& module);
void define_server(nb::module_& module);
void define_tokenizer(nb::module_& module);

// Counts a thread that is without the GIL. The constructor and the destructor hold it; work_ended() does not,
// and does not return in a thread of rule 2.
class Away {
 public:
  Away();
  ~Away();
  Away(const Away&) = delete;
  static void work_ended();
};

template <typename Work>
auto without_gil(const Work& work) {
  struct AtEnd {
    ~AtEnd() { Away::work_ended(); }
  };
  const Away away;
  const nb::gil_scoped_release released;
  const AtEnd at_end;
  return work();
}

// Waits for work that another thread does, so that this one, Python's main thread, hears signals meanwhile.
// When a handler of one raises, the work is asked to end, and that is raised.
template <typename Work>
auto heard(std::stop_source& stop, const Work& work) {
  constexpr std::chrono::milliseconds kBetweenLooks(50);
  auto result = std::async(std::launch::async, work);
  const auto is_done = [&] { return result.wait_for(kBetweenLooks) == std::future_status::ready; };
  while (!without_gil(is_done)) {
    if (PyErr_CheckSignals() == 0) continue;
    nb::python_error raised;
    stop.request_stop();
    without_gil([&] { result.wait(); });
    throw raised;
  }
  return result.get();
}

// A start, of an engine or a server, which shut_down() asks to end. Made, and ended, with the GIL held.
class Start {
 public:
  Start();
  ~Start();
  Start(const Start&) = delete;
  std::stop_source stop;
};

// A text that is being made. Any thread may pull at it.
class Stream {
 public:
  explicit Stream(TokenStream stream) : stream_(std::make_unique<TokenStream>(std::move(stream))) {}
  ~Stream();

  struct Token {
    std::int32_t id;
    std::string text;
    std::optional<double> log_prob;
  };
  // Called without the GIL.
  std::optional<Token> next();
  void close();

 private:
  const pid_t process_ = ::getpid();
  std::mutex mutex_;  // guards stream_
  std::unique_ptr<TokenStream> stream_;
};

class Core {
 public:
  explicit Core(Engine engine);
  ~Core();
  Core(const Core&) = delete;

  bool is_closed() const { return engine_ == nullptr; }
  // Ends texts that are being made. The engine ends with the last call that works on it.
  void close();
  void add(const std::shared_ptr<Stream>& stream);

  static void watch_forks();
  // At the interpreter's exit: closes all engines and waits for the threads that work on them.
  static void shut_down();

 private:
  friend class Call;
  std::shared_ptr<Engine> engine_;
  const pid_t process_ = ::getpid();
  std::vector<std::weak_ptr<Stream>> streams_;
  std::list<std::stop_source> stops_;  // of the calls that can be stopped
};

// A call to an engine: made, and ended, with the GIL held.
class Call {
 public:
  // Error(usage) that names `what`, the call, where the engine is closed or another process's.
  Call(std::shared_ptr<Core> core, const char* what);
  ~Call();
  Call(const Call&) = delete;
  Engine& engine() const { return *engine_; }
  std::stop_source& stop() { return *stop_; }

 private:
  std::shared_ptr<Core> core_;
  std::shared_ptr<Engine> engine_;
  std::list<std::stop_source>::iterator stop_;
};

// A call that ends early where a signal's handler raises, or another thread closes the engine. `work` gets
// the engine and what asks it to stop.
template <typename Work>
auto stoppable(const std::shared_ptr<Core>& core, const char* what, bool hears_signals, const Work& work) {
  Call call(core, what);
  const auto run = [&] { return work(call.engine(), call.stop().get_token()); };
  auto result = hears_signals ? heard(call.stop(), run) : without_gil(run);
  if (call.stop().stop_requested())
    throw Error(Error::Kind::usage,
                std::string("[engine] ") + what + ": the engine was closed before the texts ended");
  return result;
}
void define_layer(nb::module_& module);  // layer.cc
// Asks the processor first: throws ImportError where it lacks what kernels need.
void define_processor(nb::module_& module);

}  // namespace switchyard::python
