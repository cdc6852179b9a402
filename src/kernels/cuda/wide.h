// Neighbours that a thread reads or writes at once: 16 bytes where addresses are multiples of them.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/portable.h"

namespace switchyard::gpu {

// Elements of 16 bytes.
template <typename T>
constexpr int kWide = 16 / static_cast<int>(sizeof(T));

// Returns, on the host, whether all addresses are multiples of 16.
inline bool are_wide(std::initializer_list<const void*> addresses) {
  for (const void* address : addresses) {
    if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) return false;
  }
  return true;
}

// `width` neighbours as floats, in pieces of 16 bytes or less.
template <int width, typename T>
GPU_FUNCTION void load_floats(const T* from, float* to) {
  constexpr int piece = width < kWide<T> ? width : kWide<T>;
  for (int first = 0; first < width; first += piece) {
    const auto values = *reinterpret_cast<const Vector<T, piece>*>(from + first);
    for (int i = 0; i < piece; ++i) to[first + i] = to_float(values.at[i]);
  }
}

template <int width, typename T>
GPU_FUNCTION void store_floats(const float* from, T* to) {
  constexpr int piece = width < kWide<T> ? width : kWide<T>;
  for (int first = 0; first < width; first += piece) {
    Vector<T, piece> values;
    for (int i = 0; i < piece; ++i) values.at[i] = from_float<T>(from[first + i]);
    *reinterpret_cast<Vector<T, piece>*>(to + first) = values;
  }
}

// Calls body(width) with the width as a constant: that of 16 bytes of T, or 1.
template <typename T, typename Body>
void with_width(bool wide, const Body& body) {
  if (wide)
    body(std::integral_constant<int, kWide<T>>());
  else
    body(std::integral_constant<int, 1>());
}

GPU_FUNCTION std::int64_t thread_of_grid() {
  return block_index() * thread_count() + thread_index();
}

// `count` threads in blocks of 256.
inline Launch threads_for(std::int64_t count) {
  return {.blocks = divide_up(count, 256), .threads = 256};
}

}  // namespace switchyard::gpu
