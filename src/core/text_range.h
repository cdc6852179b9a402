// A range of bytes of a text.
#pragma once

#include <cstddef>

namespace switchyard {

struct TextRange {
  std::size_t begin = 0, end = 0;  // bytes [begin, end)
  bool operator==(const TextRange&) const = default;
};

}  // namespace switchyard
