#include "checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#include "core/error.h"

namespace switchyard {
namespace {

std::string text_of(int file) {
  char text[32] = {};
  const ssize_t bytes = ::pread(file, text, sizeof text - 1, 0);
  std::string id(text, bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  while (!id.empty() && (id.back() < '0' || id.back() > '9')) id.pop_back();
  return id.empty() ? "another process" : "process " + id;
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = folder + "/.lock";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) {
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file_ < 0) error = {errno, std::generic_category()};
  }
  if (error)
    fail_usage(
        "[checkpoint] cannot create {}: {}; set base_output_directory to a folder you may write to, or "
        "enable_checkpointing=false",
        path, error.message());
  // A process that was just killed may still be ending.
  for (int tries = 0; ::flock(file_, LOCK_EX | LOCK_NB) != 0; ++tries) {
    if (errno == EINTR) continue;
    const std::string owner = text_of(file_);
    if (errno != EWOULDBLOCK || tries >= 40) {
      ::close(file_);
      fail_usage("[checkpoint] {} is being written by {}: wait until it ends, or set another run_name",
                 folder, owner);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const std::string id = std::to_string(::getpid()) + "\n";
  const bool written = ::ftruncate(file_, 0) == 0 &&
                       ::pwrite(file_, id.data(), id.size(), 0) == static_cast<ssize_t>(id.size());
  if (!written) {  // a disk that is full: the lock holds without it
    const int ignored = ::ftruncate(file_, 0);
    static_cast<void>(ignored);
  }
}

FolderLock::~FolderLock() {
  ::close(file_);
}

}  // namespace switchyard
