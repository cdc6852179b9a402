// Refuses to write over what a command reads.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace switchyard {

// A file that a command will write: the key or option that names it, and its path, "" for none.
struct NamedOutput {
  std::string name, path;
  bool is_of_run = false;  // one of the run's folder, which may lie where texts are looked for
};

// Error(usage) where an output is, by this name or another (a link, a hard link), a file that keys of the
// config have the command read (data_path, tokenizer_path, weights, checkpoints, routing_replay, a mesh
// file), where it would become one of the texts of a data_path that is a folder, and where
// two outputs are one file.
void require_outputs_apart(const std::string& command, const Config& config,
                           const std::vector<NamedOutput>& outputs);

}  // namespace switchyard
