// The control groups of this process (a container's, or those of a batch system's job), versions 1 and 2.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

namespace switchyard {

// Calls visit(folder) for each group of the process that has the controller ("cpu", "memory"), and for the
// groups around it. Below `root` are proc/self/cgroup and sys/fs/cgroup.
void for_control_groups(const std::filesystem::path& root, std::string_view controller,
                        const std::function<void(const std::filesystem::path& group)>& visit);

// The least memory that one of them has left: its limit less what it holds, without what the system can take
// back (inactive file pages). Nothing where none has a limit.
std::optional<std::int64_t> memory_left_by_control_groups(const std::filesystem::path& root = "/");

}  // namespace switchyard
