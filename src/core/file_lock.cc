#include "core/file_lock.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>

#include "core/messages.h"

namespace switchyard {
namespace {

// The process that has the lock, 0 where the system does not tell. Lines are such as
// "3: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF": process, device and inode.
long holder_of(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return 0;
  const std::string inode = ":" + std::to_string(status.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, mode, access, place;
    long process = 0;
    if (words >> number >> kind >> mode >> access >> process >> place && kind == "FLOCK" &&
        place.ends_with(inode) && process > 0)
      return process;
  }
  return 0;
}

// Returns whether a process was killed and is about to end: it has a pending SIGKILL, or no memory any more.
bool is_ending(long process) {
  const std::string folder = "/proc/" + std::to_string(process);
  std::ifstream status(folder + "/status"), command(folder + "/cmdline");
  if (command.peek() == std::ifstream::traits_type::eof()) return true;
  for (std::string word; status >> word;) {
    if (word != "SigPnd:" && word != "ShdPnd:") continue;
    std::uint64_t pending = 0;
    if (status >> std::hex >> pending && (pending >> (SIGKILL - 1) & 1) != 0) return true;
  }
  return false;
}

}  // namespace

std::string lock_file(int descriptor, const std::string& path) {
  constexpr int kTries = 40;
  for (int tries = 0; ::flock(descriptor, LOCK_EX | LOCK_NB) != 0;) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      say("warning: {} cannot be locked ({}): nothing keeps another process from writing it, too", path,
          std::generic_category().message(errno));
      return "";
    }
    const long process = holder_of(descriptor);
    const bool may_end_at_once = process == 0 || is_ending(process);
    if (!may_end_at_once || ++tries > kTries)
      return process == 0 ? "another process" : fmt::format("process {}", process);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return "";
}

}  // namespace switchyard
