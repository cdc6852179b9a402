#include "core.h"

#include <pthread.h>

#include <condition_variable>
#include <set>
#include <thread>
#include <utility>

namespace switchyard::python {
namespace {

struct Exit {
  std::mutex mutex;  // guards the members below
  std::condition_variable came_back;
  int away = 0;
  std::optional<std::thread::id> exiting;  // the thread that shuts down
};

// Never destroyed: threads that sleep for good may wake up in it.
Exit* exit_of_process = new Exit;

Exit& at_exit() {
  return *exit_of_process;
}

std::set<Core*>& open_cores() {
  static std::set<Core*> cores;
  return cores;
}

std::set<Start*>& running_starts() {
  static std::set<Start*> starts;
  return starts;
}

// Keeps the object, whose threads this process does not have, for ever.
template <typename Pointer>
void leave_alone(Pointer& pointer) {
  static_cast<void>(new Pointer(std::move(pointer)));
}

}  // namespace

nb::str to_text(std::string_view text) {
  return nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

Away::Away() {
  Exit& shared = at_exit();
  const std::scoped_lock lock(shared.mutex);
  ++shared.away;
}

Away::~Away() {
  Exit& shared = at_exit();
  {
    const std::scoped_lock lock(shared.mutex);
    --shared.away;
    shared.came_back.notify_all();
    if (shared.exiting) return;
  }
  hand_over_messages();
}

void Away::work_ended() {
  Exit& shared = at_exit();
  {
    const std::scoped_lock lock(shared.mutex);
    if (!shared.exiting || *shared.exiting == std::this_thread::get_id()) return;
    --shared.away;
    shared.came_back.notify_all();
  }
  while (true) ::pause();
}

Start::Start() {
  running_starts().insert(this);
}
Start::~Start() {
  running_starts().erase(this);
}

Stream::~Stream() {
  if (stream_ != nullptr && process_ != ::getpid()) leave_alone(stream_);
}

std::optional<Stream::Token> Stream::next() {
  const std::scoped_lock lock(mutex_);
  if (stream_ == nullptr) return {};
  const std::optional<std::int32_t> id = stream_->next();
  if (id) return Token{*id, stream_->text(), stream_->log_prob()};
  stream_.reset();
  return {};
}

void Stream::close() {
  const std::scoped_lock lock(mutex_);
  stream_.reset();
}

Core::Core(Engine engine) : engine_(std::make_shared<Engine>(std::move(engine))) {
  open_cores().insert(this);
}

Core::~Core() {
  open_cores().erase(this);
  close();
}

void Core::close() {
  if (engine_ == nullptr) return;
  std::shared_ptr<Engine> engine = std::exchange(engine_, nullptr);
  if (process_ != ::getpid()) return leave_alone(engine);
  for (std::stop_source& stop : stops_) stop.request_stop();
  std::vector<std::shared_ptr<Stream>> streams;
  for (const std::weak_ptr<Stream>& stream : std::exchange(streams_, {})) {
    if (std::shared_ptr<Stream> held = stream.lock()) streams.push_back(std::move(held));
  }
  without_gil([&] {
    for (const std::shared_ptr<Stream>& stream : streams) stream->close();
    engine.reset();
  });
}

void Core::add(const std::shared_ptr<Stream>& stream) {
  std::erase_if(streams_, [](const std::weak_ptr<Stream>& one) { return one.expired(); });
  streams_.push_back(stream);
}

void Core::watch_forks() {
  // The child has none of the threads that count, and one of them may have held the mutex.
  ::pthread_atfork(nullptr, nullptr, [] { exit_of_process = new Exit; });
}

void Core::shut_down() {
  {
    const std::scoped_lock lock(at_exit().mutex);
    at_exit().exiting = std::this_thread::get_id();
  }
  for (Start* const start : running_starts()) start->stop.request_stop();
  const std::set<Core*> cores = open_cores();
  for (Core* const core : cores) {
    if (!open_cores().contains(core)) continue;  // close() let another thread run, which dropped it
    core->close();
  }
  without_gil([] {
    Exit& shared = at_exit();
    std::unique_lock lock(shared.mutex);
    shared.came_back.wait(lock, [&] { return shared.away == 1; });  // this one
  });
}

Call::Call(std::shared_ptr<Core> core, const char* what) : core_(std::move(core)), engine_(core_->engine_) {
  if (engine_ == nullptr) without_gil([] {});  // rule 2
  const auto refuse = [&](const char* why) {
    throw Error(Error::Kind::usage, std::string("[engine] ") + what + ": " + why);
  };
  if (engine_ == nullptr) refuse("the engine is closed");
  if (core_->process_ != ::getpid())
    refuse("the engine was made before a fork: open it in the child, or use multiprocessing's spawn");
  stop_ = core_->stops_.emplace(core_->stops_.end());
}

Call::~Call() {
  core_->stops_.erase(stop_);
  if (engine_.use_count() == 1) without_gil([&] { engine_.reset(); });  // ends the engine
}

}  // namespace switchyard::python
