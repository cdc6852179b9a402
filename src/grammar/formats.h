// The regular expressions of JSON Schema's formats that are kept. Some are narrower than their definitions
// (no leap seconds, no comments in mail addresses): what they allow every reader takes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace switchyard::grammar {

// Nothing for a format that asks nothing, or is not kept.
std::optional<std::string> pattern_of_format(std::string_view format);

// Returns whether a format of JSON Schema asks something of texts that is not kept. All others, such as those
// of OpenAPI (int64, password, binary), are annotations.
bool is_format_not_kept(std::string_view format);

}  // namespace switchyard::grammar
