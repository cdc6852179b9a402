// The regular expressions of JSON Schema's formats that are kept. Some are narrower than their definitions
// (no leap seconds, no comments in mail addresses): what they allow every reader takes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace switchyard::grammar {

// Nothing for a format that is not kept.
std::optional<std::string> pattern_of_format(std::string_view format);

}  // namespace switchyard::grammar
