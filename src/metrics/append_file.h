// A file that grows by whole records: after a failure or an interruption it can be read to its end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace switchyard {

// Not thread-safe: one owner, one thread.
class AppendFile {
 public:
  AppendFile() = default;
  // Opens `path` for writing, creating it when missing; an existing file keeps its content until clear().
  // `part` opens the message of every failure, e.g. "metrics_file". Error(usage) when the file cannot be
  // opened, and when another process has it open so. A device or a pipe may be several processes'.
  AppendFile(std::string part, std::string path);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  bool is_open() const { return descriptor_ >= 0; }

  // Discards the old content. Error(runtime) when that fails.
  void clear();

  // Keeps the first `bytes` of the old content and appends after them. Error(runtime) when that fails.
  void keep(std::int64_t bytes);

  // Returns when all written records are on the disk. May run concurrently with append(). Error(runtime).
  void sync() const;

  // Writes all bytes of `record`, or none: after a failure the file is truncated to its last whole record.
  // Error(runtime) names the file and the reason.
  void append(std::string_view record);

  // Closes the file; Error(runtime) for a delayed write failure. The destructor closes too, without throwing.
  void close();

  // Closes the file and, if the constructor created it, deletes it: for a run that
  // is refused before any work.
  void discard() noexcept;

 private:
  [[noreturn]] void fail(std::string_view action, int error_number) const;

  std::string part_;
  std::string path_;
  int descriptor_ = -1;
  bool created_ = false;
  std::int64_t whole_bytes_ = 0;  // the end of the last whole record
};

// Writes all of `bytes` to an open file; returns 0, or the errno of the first failure (ENOSPC when a write
// makes no progress). Retries interrupted and short writes.
int write_all(int descriptor, std::string_view bytes);

}  // namespace switchyard
