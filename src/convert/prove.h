// Compares every byte of a checkpoint with its hashes.
#pragma once

#include <string>
#include <vector>

namespace switchyard {

// One line for each damage: of the folder itself, of a
// tensor, of a carried file. Empty: the checkpoint is intact.
std::vector<std::string> damage_of(const std::string& checkpoint);

}  // namespace switchyard
