// switchyard tokenize: converts text to ids and back, with any tokenizer file.
#pragma once

#include <span>
#include <string>

namespace switchyard {

int tokenize_command(std::span<const std::string> args);

}  // namespace switchyard
