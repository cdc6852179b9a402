#include "metrics/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "core/error.h"
#include "metrics/append_file.h"

namespace switchyard {
namespace {

// Writes and flushes a new file; returns 0 or an errno.
int write_synced(const std::string& path, std::string_view content) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) return errno;
  int error_number = write_all(descriptor, content);
  if (error_number == 0 && ::fsync(descriptor) != 0) error_number = errno;
  if (::close(descriptor) != 0 && error_number == 0) error_number = errno;
  return error_number;
}

// Writes to what is there, such as /dev/stdout or a pipe: a rename would put a file in its place.
int write_through(const std::string& path, std::string_view content) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  int error_number = write_all(descriptor, content);
  if (::close(descriptor) != 0 && error_number == 0) error_number = errno;
  return error_number;
}

// A device, a pipe or a socket, perhaps behind a link.
bool is_special(const std::string& path) {
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  using enum std::filesystem::file_type;
  return type == character || type == block || type == fifo || type == socket;
}

}  // namespace

void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

void write_file_atomic(const std::string& path, std::string_view content) {
  if (is_special(path)) {
    if (const int error_number = write_through(path, content); error_number != 0) {
      fail_runtime("[file] cannot write {}: {}", path, std::generic_category().message(error_number));
    }
    return;
  }
  const std::string temporary = fmt::format("{}.tmp.{}", path, ::getpid());
  int error_number = write_synced(temporary, content);
  if (error_number == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) error_number = errno;
  if (error_number != 0) {
    ::unlink(temporary.c_str());
    fail_runtime("[file] cannot write {}: {}", path, std::generic_category().message(error_number));
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  sync_folder(folder.empty() ? "." : folder);
}

}  // namespace switchyard
