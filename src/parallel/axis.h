// Axis: the name of a mesh axis as a number, which is compared and copied in one step.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/inline_vector.h"

namespace switchyard {

// Numbers are given to names as they come, one to a name in the whole process; for at most 255 names
// (Error(usage)).
class Axis {
 public:
  Axis() = default;  // no axis
  Axis(std::string_view name);
  Axis(const std::string& name) : Axis(std::string_view(name)) {}
  Axis(const char* name) : Axis(std::string_view(name)) {}
  const std::string& name() const;
  auto operator<=>(const Axis&) const = default;  // in the order in which names came

 private:
  std::uint8_t number_ = 0;
};

// Ordered, major to minor, each once. A mesh has no more axes that are larger than 1.
using Axes = InlineVector<Axis, 15>;

std::string joined(const Axes& axes);  // "data+fsdp", as counters and errors name them

}  // namespace switchyard
