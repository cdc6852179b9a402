// ProcessGroup: the ranks that take part in a collective, this rank's index among them, and the group's name
// in messages and counters.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace switchyard {

struct ProcessGroup {
  std::vector<int> ranks;  // ranks of the run, in order
  int index = 0;           // ranks[index] is this rank
  std::string axis;  // the mesh axes that the ranks differ in ("data", "data+fsdp"), or a name like "world"

  std::int64_t size() const { return static_cast<std::int64_t>(ranks.size()); }
};

}  // namespace switchyard
