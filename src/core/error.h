// Errors a user can cause, and broken invariants only a bug can cause.
//
// Error carries the exit status of the command line: a wrong command line, config or file found before any
// work is `usage` (exit 2), a failure at run time is `runtime` (exit 1). Its message is one line that states
// the broken rule, the values, and what to change. CHECK aborts with the values; it is on in every build.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace switchyard {

class Error : public std::runtime_error {
 public:
  enum class Kind { usage, runtime };
  Error(Kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

template <typename... Args>
[[noreturn]] void fail_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(Error::Kind::usage, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void fail_runtime(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(Error::Kind::runtime, fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace switchyard

// CHECK(condition) or CHECK(condition, "format {}", values...): aborts with file, line, condition and values.
#define CHECK(condition, ...)                                                                \
  (static_cast<bool>(condition) ? static_cast<void>(0)                                       \
                                : ::switchyard::check_failed(__FILE__, __LINE__, #condition, \
                                                             ::switchyard::check_detail(__VA_ARGS__)))

namespace switchyard {
inline std::string check_detail() {
  return {};
}
template <typename... Args>
std::string check_detail(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace switchyard
