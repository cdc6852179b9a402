// Makes text of unknown origin safe to show on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace switchyard {

// Replaces each broken UTF-8 sequence and each control character except newline and tab by U+FFFD.
std::string terminal_text(std::string_view text);

}  // namespace switchyard
