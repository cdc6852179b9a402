// The text of configs/inert_keys.json, which the build embeds in the program (cmake/inert_keys.cc.in).
#pragma once

#include <string_view>

namespace switchyard {

extern const std::string_view kInertKeys;

}  // namespace switchyard
