// switchyard completion bash|zsh|fish
#pragma once

#include <span>
#include <string>
#include <vector>

namespace switchyard {

int completion_command(std::span<const std::string> args);

// Returns what the last of the words behind `switchyard` may become; a shell then takes those that it begins.
// A word NAME= is completed by a value. In place of ":files" and ":folders" the shell offers files and
// folders, behind the = where there is one. No command is run.
std::vector<std::string> completions(std::span<const std::string> words);

}  // namespace switchyard
