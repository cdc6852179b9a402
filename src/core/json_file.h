// Reads JSON documents from outside whole, and refuses malformed ones.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace switchyard {

// Parses a document of at most 256 levels. Throws Error(usage) naming `name` (a path) for malformed JSON, a
// duplicate key or too deep nesting. Python's extensions of the standard are read as by standard_json.
nlohmann::json parse_json(std::string_view text, const std::string& name);

// Replaces what Python's json writes and the standard forbids: NaN, Infinity and -Infinity become null, and
// half a surrogate pair becomes U+FFFD.
std::string standard_json(std::string_view text);

// Parses a file as parse_json does; also Error(usage) when the file cannot be read.
nlohmann::json read_json_file(const std::string& path);

// Returns the bytes of a file. Throws Error(usage) when the file cannot be read.
std::string read_whole_file(const std::string& path);

// Quotes text from a file for a one-line message: in
// quotes, control characters escaped, at most 100 bytes.
std::string in_quotes(std::string_view text);

}  // namespace switchyard
