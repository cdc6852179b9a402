// How errors are thrown: fail_usage, fail_runtime, and CHECK for invariants that only a bug can break.
//
// `usage` is a wrong command line, config or file found before any work (exit status 2). `runtime` is a
// failure at run time (1). `internal` is a failed CHECK, active in every build; the command line then aborts.
#pragma once

#include <fmt/core.h>

#include <string>

#include "switchyard/error.h"

namespace switchyard {

[[noreturn]] void throw_error(Error::Kind kind, fmt::string_view format, fmt::format_args args);

template <typename... Args>
[[noreturn]] void fail_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw_error(Error::Kind::usage, format, fmt::make_format_args(args...));
}

template <typename... Args>
[[noreturn]] void fail_runtime(fmt::format_string<Args...> format, Args&&... args) {
  throw_error(Error::Kind::runtime, format, fmt::make_format_args(args...));
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace switchyard

// CHECK(condition) or CHECK(condition, "format {}", values...): throws Error(internal) with file, line,
// condition and values.
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
  return fmt::vformat(format, fmt::make_format_args(args...));
}
}  // namespace switchyard
