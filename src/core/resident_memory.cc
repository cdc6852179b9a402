#include "core/resident_memory.h"

#include <fstream>
#include <string>

namespace switchyard {

void reset_peak_resident() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

std::int64_t peak_resident_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

}  // namespace switchyard
