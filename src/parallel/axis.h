// Axis: the name of a mesh axis as a number, so that comparing and copying are cheap.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/inline_vector.h"

namespace switchyard {

// Names are numbered in the order of their first use in
// the process; at most 255 names, then Error(usage).
class Axis {
 public:
  Axis() = default;  // no axis
  Axis(std::string_view name);
  Axis(const std::string& name) : Axis(std::string_view(name)) {}
  Axis(const char* name) : Axis(std::string_view(name)) {}
  const std::string& name() const;
  auto operator<=>(const Axis&) const = default;  // in the order in which names were first used

 private:
  std::uint8_t number_ = 0;
};

// Ordered, major to minor, each once. A mesh has at most 15 axes larger than 1.
using Axes = InlineVector<Axis, 15>;

std::string joined(const Axes& axes);  // "data+fsdp", as in counters and errors

}  // namespace switchyard
