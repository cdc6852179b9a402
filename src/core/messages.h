// say(): a line for people, from any thread.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "switchyard/messages.h"

namespace switchyard {

// Gives the line to the handler of messages.
void say_line(const std::string& line);

template <typename... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  say_line(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace switchyard
