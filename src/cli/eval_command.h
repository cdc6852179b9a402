// `switchyard eval`: measures how well a stored model predicts a text, and how far other weights differ.
#pragma once

#include <span>
#include <string>

namespace switchyard {

int eval_command(std::span<const std::string> args);

}  // namespace switchyard
