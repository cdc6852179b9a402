// A file that grows by whole records: what a failed or interrupted run leaves behind can be read to its end.
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
  // opened.
  AppendFile(std::string part, std::string path);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  bool is_open() const { return descriptor_ >= 0; }

  // Drops the old content. Error(runtime) when that fails.
  void clear();

  // Goes on after the first `bytes` of the old content, dropping the rest. Error(runtime) when that fails.
  void keep(std::int64_t bytes);

  // Returns when what was written is on the disk. Thread-safe beside append(). Error(runtime).
  void sync() const;

  // Writes all bytes of `record` at once, or none: after a failure the file is cut back to its last whole
  // record. Error(runtime) names the file and the reason.
  void append(std::string_view record);

  // Closes the file; a delayed write failure is Error(runtime). The destructor closes too, but stays silent.
  void close();

  // Closes the file and, when the constructor created it, deletes it: for a run that is refused before any
  // work.
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
// makes no progress). Interrupted and short writes go on.
int write_all(int descriptor, std::string_view bytes);

}  // namespace switchyard
