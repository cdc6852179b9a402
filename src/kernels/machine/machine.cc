#include "kernels/machine/machine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <system_error>

#include "core/control_group.h"
#include "core/tensor.h"
#include "kernels/registry/isa.h"

namespace switchyard {
namespace {

// Returns the text after the colon of the first line of `path` that starts with `key`; "" without one.
std::string value_of(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const auto begin = line.find_first_not_of(" \t", line.find(':') + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

}  // namespace

std::string machine_name() {
  const std::string processor = value_of("/proc/cpuinfo", "model name");
  return fmt::format("{} ({}{})", processor.empty() ? "unknown processor" : processor, name_of(active_isa()),
                     active_isa() == Isa::amx && amx_is_emulated() ? ", emulated" : "");
}

bool has_true_numbers() {
#if defined(SWITCHYARD_AMX_COSTS)
  return false;
#else
  return true;
#endif
}

std::int64_t last_level_cache_bytes() {
  long bytes = 0;
  for (const int level : {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL4_CACHE_SIZE})
    bytes = std::max(bytes, ::sysconf(level));
  return bytes;
}

std::optional<AvailableMemory> available_memory() {
  const std::string text = value_of("/proc/meminfo", "MemAvailable");
  std::int64_t kilobytes = 0;
  const bool known =
      std::from_chars(text.data(), text.data() + text.size(), kilobytes).ec == std::errc() && kilobytes > 0;
  const auto of_groups = memory_left_by_control_groups();
  if (!known && !of_groups) return {};
  const std::int64_t of_machine = known ? kilobytes * 1024 : *of_groups;
  AvailableMemory available{std::min(of_machine, of_groups.value_or(of_machine)), address_limit()};
  if (available.limit) available.limit->left += static_cast<std::int64_t>(memory_reserved());
  return available;
}

std::int64_t available_memory_bytes() {
  const auto available = available_memory();
  if (!available) return 0;
  return available->limit ? std::min(available->bytes, available->limit->left) : available->bytes;
}

}  // namespace switchyard
