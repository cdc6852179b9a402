#include "cli/chat/backend.h"

namespace switchyard {

void EventReader::add(std::string_view bytes, const std::function<void(const ChatJson& event)>& on_event) {
  for (const char byte : bytes) {
    if (byte != '\n') {
      line_ += byte;
      continue;
    }
    std::string_view line = line_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("data:")) {
      line.remove_prefix(5);
      if (line.starts_with(' ')) line.remove_prefix(1);
      const ChatJson event = line == "[DONE]" ? ChatJson() : ChatJson::parse(line, nullptr, false);
      if (line == "[DONE]")
        done_ = true;
      else if (event.is_object())
        on_event(event);
      else
        broken_ = true;
    }
    line_.clear();
  }
}

}  // namespace switchyard
