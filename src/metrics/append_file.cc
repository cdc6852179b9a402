#include "metrics/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/file_lock.h"

namespace switchyard {

int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return ENOSPC;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

AppendFile::AppendFile(std::string part, std::string path) : part_(std::move(part)), path_(std::move(path)) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC;
  descriptor_ = ::open(path_.c_str(), kFlags | O_EXCL, 0666);
  created_ = descriptor_ >= 0;
  if (!created_ && errno == EEXIST) descriptor_ = ::open(path_.c_str(), kFlags, 0666);
  if (descriptor_ < 0) {
    fail_usage("[{}] cannot create {}: {}; name a file in a folder that exists and can be written", part_,
               path_, std::generic_category().message(errno));
  }
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) return;
  if (const std::string holder = lock_file(descriptor_, path_); !holder.empty()) {
    ::close(std::exchange(descriptor_, -1));
    fail_usage("[{}] {} is being written by {}: wait until it ends, or name another file", part_, path_,
               holder);
  }
}

AppendFile::~AppendFile() {
  if (is_open()) ::close(descriptor_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept {
  *this = std::move(other);
}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(part_, other.part_);
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(created_, other.created_);
  std::swap(whole_bytes_, other.whole_bytes_);
  return *this;
}

void AppendFile::clear() {
  CHECK(is_open(), "{}", path_);
  // EINVAL: a pipe or a device, which has no content to drop.
  if (::ftruncate(descriptor_, 0) != 0 && errno != EINVAL) fail("empty", errno);
  whole_bytes_ = 0;
}

void AppendFile::keep(std::int64_t bytes) {
  CHECK(is_open(), "{}", path_);
  if (::ftruncate(descriptor_, bytes) != 0 && errno != EINVAL) fail("cut", errno);
  if (::lseek(descriptor_, bytes, SEEK_SET) < 0 && errno != ESPIPE) fail("continue", errno);
  whole_bytes_ = bytes;
}

void AppendFile::sync() const {
  // EINVAL: a pipe or a device.
  if (::fsync(descriptor_) != 0 && errno != EINVAL) fail("flush", errno);
}

void AppendFile::append(std::string_view record) {
  CHECK(is_open(), "{}", path_);
  const int error_number = write_all(descriptor_, record);
  if (error_number == 0) {
    whole_bytes_ += static_cast<std::int64_t>(record.size());
    return;
  }
  // Best effort: cutting back fails only for pipes and devices, which keep nothing.
  if (::ftruncate(descriptor_, whole_bytes_) == 0) ::lseek(descriptor_, whole_bytes_, SEEK_SET);
  fail("write", error_number);
}

void AppendFile::close() {
  if (is_open() && ::close(std::exchange(descriptor_, -1)) != 0) fail("close", errno);
}

void AppendFile::discard() noexcept {
  if (!is_open()) return;
  ::close(std::exchange(descriptor_, -1));
  if (created_) ::unlink(path_.c_str());
}

void AppendFile::fail(std::string_view action, int error_number) const {
  fail_runtime("[{}] cannot {} {}: {}; whole records up to byte {} are kept", part_, action, path_,
               std::generic_category().message(error_number), whole_bytes_);
}

}  // namespace switchyard
