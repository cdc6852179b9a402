#include "core/messages.h"

#include <cstdio>
#include <mutex>

namespace switchyard {
namespace {

struct Handler {
  std::mutex mutex;  // guards `call`
  MessageHandler call;
};

// Never destroyed: threads may speak while the process ends.
Handler& handler_of_process() {
  static Handler* const handler = new Handler;
  return *handler;
}

}  // namespace

void set_message_handler(MessageHandler handler) {
  Handler& own = handler_of_process();
  const std::scoped_lock lock(own.mutex);
  own.call = std::move(handler);
}

void say_line(const std::string& line) {
  Handler& own = handler_of_process();
  const std::scoped_lock lock(own.mutex);
  if (own.call)
    own.call(line);
  else
    fmt::print(stderr, "{}\n", line);
}

}  // namespace switchyard
