// Formats bytes for people.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace switchyard {

inline std::string gib(std::int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (b >= 1 << 30) return fmt::format("{:.2f} GiB", b / (1 << 30));
  return b >= 1 << 20 ? fmt::format("{:.1f} MiB", b / (1 << 20)) : fmt::format("{:.1f} KiB", b / 1024);
}

}  // namespace switchyard
