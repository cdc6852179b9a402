// Helpers for untyped memory in communicators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace switchyard {

// Copies `bytes` bytes; does nothing when there are none, or `to` equals `from`.
inline void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

inline const std::byte* at(const void* data, std::int64_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}
inline std::byte* at(void* data, std::int64_t offset) {
  return static_cast<std::byte*>(data) + offset;
}

}  // namespace switchyard
