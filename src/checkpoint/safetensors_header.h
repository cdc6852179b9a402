// Parses the header of a safetensors file: checks its form, not yet its numbers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

struct SafetensorsHeader {
  struct Item {
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::vector<std::uint64_t> offsets;  // begin, end
  };
  std::map<std::string, Item> items;
  std::map<std::string, std::string> metadata;
};

// Throws Error(usage) `[safetensors] <path>: <rule>` for JSON of any other form and for duplicate keys.
SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& path);

}  // namespace switchyard
