// Every byte of a checkpoint against its hashes.
#pragma once

#include <string>
#include <vector>

namespace switchyard {

// What is damaged, one line each: the folder itself, a tensor, a file carried along. Empty: all is as
// written.
std::vector<std::string> damage_of(const std::string& checkpoint);

}  // namespace switchyard
