// The words of `weight_format`, for the key and for messages.
#pragma once

#include <string>
#include <vector>

#include "core/packed_format.h"

namespace switchyard {

// Returns the names of the formats into which weights can be packed, behind `others`.
inline std::vector<std::string> packed_words(std::vector<std::string> others = {}) {
  for (const PackedFormat& format : kPackedFormats) {
    if (format.packable) others.emplace_back(format.name);
  }
  return others;
}

}  // namespace switchyard
