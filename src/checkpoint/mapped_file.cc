#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "core/error.h"

namespace switchyard {

bool is_lfs_pointer(std::string_view bytes) {
  return bytes.starts_with("version https://git-lfs.github.com/spec/");
}

MappedFile map_file(const std::string& path, std::string_view tag) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_usage("[{}] {}: cannot be opened: {}", tag, path, std::strerror(errno));
  struct stat info {};
  const bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  const std::size_t size = regular ? static_cast<std::size_t>(info.st_size) : 0;
  void* data = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
  const int reason = errno;
  ::close(fd);
  if (!regular) fail_usage("[{}] {}: not a regular file", tag, path);
  if (size == 0) fail_usage("[{}] {}: the file is empty", tag, path);
  if (data == MAP_FAILED) fail_usage("[{}] {}: cannot be mapped: {}", tag, path, std::strerror(reason));
  if (is_lfs_pointer({static_cast<const char*>(data), size})) {
    ::munmap(data, size);
    fail_usage("[{}] {}: a Git LFS pointer of {} bytes, not the file itself: `git lfs pull` fetches it", tag,
               path, size);
  }
  const auto unmap = [size](const void* p) { ::munmap(const_cast<void*>(p), size); };
  return {{data, unmap}, {static_cast<const std::byte*>(data), size}};
}

void release_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data()) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(bytes.data() + bytes.size());
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace switchyard
