#include "core/file_lock.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>

namespace switchyard {
namespace {

// Lines are such as "3: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF": process, device and inode.
std::string holder_of(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) == 0) {
    const std::string inode = ":" + std::to_string(status.st_ino);
    std::ifstream locks("/proc/locks");
    for (std::string line; std::getline(locks, line);) {
      std::istringstream words(line);
      std::string number, kind, mode, access, place;
      long process = 0;
      if (words >> number >> kind >> mode >> access >> process >> place && kind == "FLOCK" &&
          place.ends_with(inode) && process > 0)
        return fmt::format("process {}", process);
    }
  }
  return "another process";
}

}  // namespace

std::string lock_file(int descriptor, const std::string& path) {
  constexpr int kTries = 40;
  for (int tries = 0; ::flock(descriptor, LOCK_EX | LOCK_NB) != 0;) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      fmt::print(stderr,
                 "warning: {} cannot be locked ({}): nothing keeps another process from writing it, too\n",
                 path, std::generic_category().message(errno));
      return "";
    }
    if (++tries > kTries) return holder_of(descriptor);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return "";
}

}  // namespace switchyard
