// Locks that keep two processes from writing one file.
#pragma once

#include <string>

namespace switchyard {

// Locks the open file for its descriptor (flock) until that is closed, and returns "". Where another process has it
// (one that was just killed is waited for): "process 12", or "another process" where the system
// does not tell. Where the file system has no locks, a line on standard error says so, and the file is taken.
std::string lock_file(int descriptor, const std::string& path);

}  // namespace switchyard
