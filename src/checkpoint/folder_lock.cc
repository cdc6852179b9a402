#include "checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "core/error.h"
#include "core/file_lock.h"

namespace switchyard {
namespace {

// The process that the file names; another machine's, too.
std::string owner_in(int file, const std::string& otherwise) {
  char text[32] = {};
  const ssize_t bytes = ::pread(file, text, sizeof text - 1, 0);
  std::string id(text, bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  while (!id.empty() && (id.back() < '0' || id.back() > '9')) id.pop_back();
  return id.empty() ? otherwise : "process " + id;
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) : path_(folder + "/.lock") {
  while (!open_and_lock(folder)) {
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

// Returns false where another process removed the file between the two.
bool FolderLock::open_and_lock(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC;
  if (!error) {
    file_ = ::open(path_.c_str(), kFlags | O_EXCL, 0666);
    created_ = file_ >= 0;
    if (!created_ && errno == EEXIST) file_ = ::open(path_.c_str(), kFlags, 0666);
    if (file_ < 0) error = {errno, std::generic_category()};
  }
  if (error)
    fail_usage("[train] cannot create {}: {}; set base_output_directory to a folder you may write to", path_,
               error.message());
  if (const std::string holder = lock_file(file_, path_); !holder.empty()) {
    const std::string owner = owner_in(file_, holder);
    ::close(file_);
    fail_usage("[train] {} is being written by {}: wait until it ends, or set another run_name", folder,
               owner);
  }
  struct stat locked {
  }, named{};
  if (::fstat(file_, &locked) == 0 && ::stat(path_.c_str(), &named) == 0 && locked.st_ino == named.st_ino)
    return true;
  ::close(file_);
  return false;
}

void FolderLock::discard() {
  if (created_) ::unlink(path_.c_str());
}

}  // namespace switchyard
