// switchyard tokenize: text to ids and back, by any tokenizer file.
#pragma once

#include <span>
#include <string>

namespace switchyard {

int tokenize_command(std::span<const std::string> args);

}  // namespace switchyard
