// JSON documents from outside: read whole, refused when broken.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace switchyard {

// Parses a document of at most 256 levels. Throws Error(usage) naming `name` (a path) for malformed JSON, a
// duplicate key or too deep nesting. What Python writes beyond the standard is read as standard_json has it.
nlohmann::json parse_json(std::string_view text, const std::string& name);

// The text with null for NaN, Infinity and -Infinity, and U+FFFD for half a surrogate pair, which Python's
// json writes and the standard does not have.
std::string standard_json(std::string_view text);

// The same from a file; also Error(usage) when it cannot be read.
nlohmann::json read_json_file(const std::string& path);

// Bytes of a file. Throws Error(usage) when it cannot be read.
std::string read_whole_file(const std::string& path);

// Text from a file as it may stand in a one-line message: quoted, control characters escaped, at most 100
// bytes.
std::string in_quotes(std::string_view text);

}  // namespace switchyard
