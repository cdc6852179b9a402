// Counts a struct's members at compile time, so that a table of them can refuse to miss one.
#pragma once

#include <cstddef>
#include <utility>

namespace switchyard {

struct ConvertsToAnything {
  template <typename T>
  operator T() const;  // never defined: only used unevaluated
};

template <typename T, std::size_t... I>
constexpr bool takes_initializers(std::index_sequence<I...>) {
  return requires {
    T{(static_cast<void>(I), ConvertsToAnything{})...};
  };
}

// T: an aggregate without bases and without array members.
template <typename T, std::size_t N = 0>
constexpr std::size_t field_count() {
  if constexpr (takes_initializers<T>(std::make_index_sequence<N + 1>()))
    return field_count<T, N + 1>();
  else
    return N;
}

}  // namespace switchyard
