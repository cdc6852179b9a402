// Standard base64 (RFC 4648, with padding).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace switchyard {

// Returns nothing when a character or the length is wrong.
std::optional<std::string> from_base64(std::string_view text);

std::string to_base64(std::string_view bytes);

}  // namespace switchyard
