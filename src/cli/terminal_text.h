// Text of unknown origin as a terminal may be shown it.
#pragma once

#include <string>
#include <string_view>

namespace switchyard {

// The text in which each broken UTF-8 sequence and each control character but newline and tab is U+FFFD.
std::string terminal_text(std::string_view text);

}  // namespace switchyard
