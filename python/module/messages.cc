// The engine's messages on their way to the logger "switchyard".
#include "switchyard/messages.h"

#include <atomic>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "core.h"

namespace switchyard::python {
namespace {

struct Said {
  std::mutex mutex;  // guards `lines`
  std::deque<std::string> lines;
  std::atomic<bool> any = false;
};

// Never destroyed: the engine's threads may speak while the process ends.
Said& said() {
  static Said* const lines = new Said;
  return *lines;
}

}  // namespace

void hand_over_messages() {
  Said& own = said();
  if (!own.any.exchange(false)) return;
  std::deque<std::string> lines;
  {
    const std::scoped_lock lock(own.mutex);
    lines.swap(own.lines);
  }
  try {
    const nb::object logger = nb::module_::import_("logging").attr("getLogger")("switchyard");
    for (const std::string& line : lines) logger.attr("warning")("%s", to_text(line));
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("switchyard's messages");
  }
}

void define_messages(nb::module_&) {
  set_message_handler([](const std::string& line) {
    constexpr std::size_t kMost = 10000;  // of a program that calls nothing for long
    Said& own = said();
    const std::scoped_lock lock(own.mutex);
    if (own.lines.size() == kMost) own.lines.pop_front();
    own.lines.push_back(line);
    own.any = true;
  });
}

}  // namespace switchyard::python
