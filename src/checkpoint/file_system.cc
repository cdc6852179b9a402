#include "checkpoint/file_system.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <vector>

#include "core/error.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

int result_of(int status) {
  return status < 0 ? -errno : status;
}

[[noreturn]] void fail(const char* action, const std::string& path, std::int64_t result) {
  fail_runtime("[checkpoint] cannot {} {}: {}", action, path,
               std::generic_category().message(static_cast<int>(-result)));
}

// Repeats a call while a signal interrupts it.
template <typename Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result == -EINTR) result = call();
  return result;
}

}  // namespace

FileSystem& FileSystem::real() {
  static FileSystem files;
  return files;
}

int FileSystem::open(const std::string& path, int flags) {
  return result_of(::open(path.c_str(), flags | O_CLOEXEC, 0666));
}

std::int64_t FileSystem::write_at(int file, const void* from, std::size_t bytes, std::int64_t offset) {
  const ssize_t written = ::pwrite(file, from, bytes, offset);
  return written < 0 ? -errno : written;
}

int FileSystem::resize(int file, std::int64_t bytes) {
  return result_of(::ftruncate(file, bytes));
}

void FileSystem::start_flush(int file, std::int64_t offset, std::size_t bytes) {
  ::sync_file_range(file, offset, static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
}

int FileSystem::sync(int file) {
  return result_of(::fsync(file));
}

int FileSystem::close(int file) {
  return result_of(::close(file));
}

int FileSystem::make_folder(const std::string& path) {
  return result_of(::mkdir(path.c_str(), 0777));
}

int FileSystem::rename(const std::string& from, const std::string& to) {
  return result_of(::rename(from.c_str(), to.c_str()));
}

int FileSystem::remove_file(const std::string& path) {
  return result_of(::unlink(path.c_str()));
}

int FileSystem::remove_folder(const std::string& path) {
  return result_of(::rmdir(path.c_str()));
}

OutputFile::OutputFile(FileSystem& files, std::string path, Mode mode)
    : files_(files), path_(std::move(path)) {
  const int flags = mode == Mode::create ? O_WRONLY | O_CREAT | O_TRUNC : O_WRONLY;
  file_ = uninterrupted([&] { return files_.open(path_, flags); });
  if (file_ < 0) fail("create", path_, file_);
}

OutputFile::~OutputFile() {
  close_direct();
  if (file_ >= 0) files_.close(file_);
}

void OutputFile::close_direct() {
  if (direct_ >= 0) files_.close(direct_);
  direct_ = kNone;
}

bool OutputFile::open_direct() {
  if (direct_ == kUnknown) {
    const int opened = uninterrupted([&] { return files_.open(path_, O_WRONLY | O_DIRECT); });
    if (opened < 0 && opened != -EINVAL) fail("open", path_, opened);
    direct_ = opened < 0 ? kNone : opened;
  }
  return direct_ >= 0;
}

void OutputFile::resize(std::int64_t bytes) {
  const int result = uninterrupted([&] { return files_.resize(file_, bytes); });
  if (result < 0) fail("resize", path_, result);
}

OutputFile::Part OutputFile::part_of(const std::byte* data, std::size_t bytes, std::int64_t offset) {
  constexpr std::size_t kMost = std::size_t{32} << 20;
  const std::size_t behind = static_cast<std::size_t>(offset) % kBlock, rest = (kBlock - behind) % kBlock;
  const bool like_place = reinterpret_cast<std::uintptr_t>(data) % kBlock == behind;
  if (!like_place || bytes - std::min(bytes, rest) < files_.direct_bytes() || !open_direct())
    return {std::min(bytes, kMost), false};
  if (rest > 0) return {rest, false};
  return {std::min(bytes, kMost) / kBlock * kBlock, true};
}

void OutputFile::write_at(const void* from, std::size_t bytes, std::int64_t offset) {
  const auto* data = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const Part part = part_of(data, bytes, offset);
    const std::int64_t written = uninterrupted(
        [&] { return files_.write_at(part.direct ? direct_ : file_, data, part.bytes, offset); });
    if (part.direct && written == -EINVAL) {  // larger blocks than ours
      close_direct();
      continue;
    }
    if (written <= 0) fail("write", path_, written == 0 ? -ENOSPC : written);
    const auto done = static_cast<std::size_t>(written);
    if (!part.direct && done >= files_.direct_bytes()) files_.start_flush(file_, offset, done);
    data += done;
    offset += written;
    bytes -= done;
  }
}

void OutputFile::sync() {
  const int result = uninterrupted([&] { return files_.sync(file_); });
  if (result < 0) fail("flush", path_, result);
}

void OutputFile::close() {
  close_direct();
  // A close that a signal interrupts has closed the file.
  const int result = files_.close(std::exchange(file_, -1));
  if (result < 0 && result != -EINTR) fail("close", path_, result);
}

void make_folder(FileSystem& files, const std::string& path) {
  const int result = uninterrupted([&] { return files.make_folder(path); });
  if (result < 0 && result != -EEXIST) fail("create", path, result);
}

void sync_folder(FileSystem& files, const std::string& path) {
  const int file = uninterrupted([&] { return files.open(path, O_RDONLY | O_DIRECTORY); });
  if (file < 0) fail("open", path, file);
  const int result = uninterrupted([&] { return files.sync(file); });
  files.close(file);
  // Some file systems cannot sync a folder, and need not.
  if (result < 0 && result != -EINVAL && result != -ENOTSUP) fail("flush", path, result);
}

void rename_path(FileSystem& files, const std::string& from, const std::string& to) {
  const int result = uninterrupted([&] { return files.rename(from, to); });
  if (result < 0) fail("rename to", to, result);
}

void remove_tree(FileSystem& files, const std::string& path) {
  std::error_code error;
  const bool folder = fs::is_directory(fs::symlink_status(path, error));
  std::vector<fs::path> inside;
  for (fs::directory_iterator it(path, error), end; folder && !error && it != end; it.increment(error))
    inside.push_back(it->path());
  for (const fs::path& entry : inside) remove_tree(files, entry.string());
  const int result =
      uninterrupted([&] { return folder ? files.remove_folder(path) : files.remove_file(path); });
  if (result < 0 && result != -ENOENT) fail("remove", path, result);
}

void write_synced(FileSystem& files, const std::string& path, const std::string& content) {
  OutputFile file(files, path, OutputFile::Mode::create);
  file.write_at(content.data(), content.size(), 0);
  file.sync();
  file.close();
}

}  // namespace switchyard
