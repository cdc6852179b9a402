// for_each_view(): the views among a kernel's arguments, so that run() can ask where they all are.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "core/field_count.h"
#include "core/tensor_view.h"

namespace switchyard {

// Calls visit(view) for each TensorView in `args`: a struct of views and numbers, structs in it, and lists of
// such structs. What a pointer or a function leads to is passed over.
template <typename T, typename Visit>
void for_each_view(const T& args, const Visit& visit);

template <typename T, typename Visit>
void for_each_view(const std::span<const T>& list, const Visit& visit) {
  if constexpr (std::is_class_v<T>) {
    for (const T& each : list) for_each_view(each, visit);
  }
}

template <typename T, typename Visit>
void for_each_view(const T& args, const Visit& visit) {
  if constexpr (std::is_same_v<T, TensorView>) {
    visit(args);
  } else if constexpr (std::is_class_v<T> && std::is_aggregate_v<T>) {
    constexpr std::size_t count = field_count<T>();
    const auto each = [&](const auto&... fields) { (for_each_view(fields, visit), ...); };
    static_assert(count <= 18, "a struct of more members needs a line here");
    // clang-format off
    if constexpr (count == 1) { const auto& [a] = args; each(a); }
    else if constexpr (count == 2) { const auto& [a, b] = args; each(a, b); }
    else if constexpr (count == 3) { const auto& [a, b, c] = args; each(a, b, c); }
    else if constexpr (count == 4) { const auto& [a, b, c, d] = args; each(a, b, c, d); }
    else if constexpr (count == 5) { const auto& [a, b, c, d, e] = args; each(a, b, c, d, e); }
    else if constexpr (count == 6) { const auto& [a, b, c, d, e, f] = args; each(a, b, c, d, e, f); }
    else if constexpr (count == 7) { const auto& [a, b, c, d, e, f, g] = args; each(a, b, c, d, e, f, g); }
    else if constexpr (count == 8) { const auto& [a, b, c, d, e, f, g, h] = args; each(a, b, c, d, e, f, g, h); }
    else if constexpr (count == 9) { const auto& [a, b, c, d, e, f, g, h, i] = args; each(a, b, c, d, e, f, g, h, i); }
    else if constexpr (count == 10) { const auto& [a, b, c, d, e, f, g, h, i, j] = args; each(a, b, c, d, e, f, g, h, i, j); }
    else if constexpr (count == 11) { const auto& [a, b, c, d, e, f, g, h, i, j, k] = args; each(a, b, c, d, e, f, g, h, i, j, k); }
    else if constexpr (count == 12) { const auto& [a, b, c, d, e, f, g, h, i, j, k, l] = args; each(a, b, c, d, e, f, g, h, i, j, k, l); }
    else if constexpr (count == 13) { const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = args; each(a, b, c, d, e, f, g, h, i, j, k, l, m); }
    else if constexpr (count == 14) { const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = args; each(a, b, c, d, e, f, g, h, i, j, k, l, m, n); }
    else if constexpr (count == 15) { const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = args; each(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o); }
    else if constexpr (count == 16) { const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = args; each(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p); }
    else if constexpr (count == 17) { const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q] = args; each(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q); }
    else if constexpr (count == 18) { const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r] = args; each(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r); }
    // clang-format on
  }
}

}  // namespace switchyard
