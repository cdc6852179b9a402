#include "core/control_group.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <initializer_list>
#include <string>

namespace switchyard {
namespace {

namespace fs = std::filesystem;

std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? std::optional(value)
                                                    : std::nullopt;  // "max" is no limit
}

std::optional<std::int64_t> number_of_file(const fs::path& path) {
  std::string text;
  std::ifstream(path) >> text;
  return number_in(text);
}

std::int64_t value_in(const fs::path& path, std::string_view wanted) {
  std::ifstream file(path);
  for (std::string key, value; file >> key >> value;) {
    if (key == wanted) return number_in(value).value_or(0);
  }
  return 0;
}

struct FileNames {
  const char *limit, *used, *inactive;
};

std::optional<std::int64_t> memory_left(const fs::path& group, const FileNames& names) {
  const auto limit = number_of_file(group / names.limit), used = number_of_file(group / names.used);
  constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;  // version 1 has a number near the largest one
  if (!limit || !used || *limit >= kNoLimit) return std::nullopt;
  const std::int64_t held =
      std::max<std::int64_t>(0, *used - value_in(group / "memory.stat", names.inactive));
  return std::max<std::int64_t>(0, *limit - held);
}

}  // namespace

// "0::/group" (version 2) or "4:cpu,cpuacct:/group"; the group may lie outside of what is mounted here.
void for_control_groups(const fs::path& root, std::string_view controller,
                        const std::function<void(const fs::path& group)>& visit) {
  const fs::path all = root / "sys/fs/cgroup";
  const std::string wanted = "," + std::string(controller) + ",";
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(std::min(second + 2, line.size()));
    if (!controllers.empty() && ("," + controllers + ",").find(wanted) == std::string::npos) continue;
    const fs::path mount = controllers.empty() ? all : all / controllers;
    std::error_code ignored;
    fs::path folder = group.empty() ? mount : mount / group;
    if (!fs::is_directory(folder, ignored)) folder = mount;
    visit(folder);
    while (folder != mount && folder.has_relative_path()) visit(folder = folder.parent_path());
  }
}

std::optional<std::int64_t> memory_left_by_control_groups(const fs::path& root) {
  std::optional<std::int64_t> least;
  for_control_groups(root, "memory", [&](const fs::path& group) {
    for (const FileNames& names :
         {FileNames{"memory.max", "memory.current", "inactive_file"},
          {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}}) {
      if (const auto left = memory_left(group, names)) least = std::min(least.value_or(*left), *left);
    }
  });
  return least;
}

}  // namespace switchyard
