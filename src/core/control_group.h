// The Linux control groups of this process (of a container or a batch job), versions 1 and 2.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

namespace switchyard {

// Calls visit(folder) for each control group of the process that has the controller ("cpu", "memory"), and
// for its ancestors. Reads proc/self/cgroup and sys/fs/cgroup below `root`.
void for_control_groups(const std::filesystem::path& root, std::string_view controller,
                        const std::function<void(const std::filesystem::path& group)>& visit);

// The smallest amount of memory that any of these groups has left: its limit minus its usage, where the usage
// excludes inactive file pages, which the system can reclaim. Empty when no group has a limit.
std::optional<std::int64_t> memory_left_by_control_groups(const std::filesystem::path& root = "/");

}  // namespace switchyard
