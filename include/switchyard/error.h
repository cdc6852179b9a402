// The errors of Switchyard: errors that a user can cause, and errors that only a bug in the library can.
#pragma once

#include <stdexcept>
#include <string>

namespace switchyard {

// `what()` is one line that states the broken rule, the values, and what to change.
class Error : public std::runtime_error {
 public:
  enum class Kind {
    usage,     // a wrong setting, file or argument, found before any work
    runtime,   // a failure while working, such as a full disk or numbers that are not finite
    internal,  // a bug in the library: the message has file, line and condition
  };
  Error(Kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

}  // namespace switchyard
