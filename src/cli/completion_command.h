// switchyard completion bash|zsh|fish
#pragma once

#include <span>
#include <string>
#include <vector>

namespace switchyard {

int completion_command(std::span<const std::string> args);

// Returns what the last of the words behind `switchyard` may become; a shell then takes those that it begins.
// NAME= goes on with a value. ":files" and ":folders" stand for what the shell finds there, behind the =
// where there is one. No command is run.
std::vector<std::string> completions(std::span<const std::string> words);

}  // namespace switchyard
