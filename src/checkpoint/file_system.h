// FileSystem: the system calls that write checkpoints, so that tests can make each call fail and can replay
// the calls up to a power cut. Checkpoints are written only through this class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace switchyard {

// Each function is the system call of the same name or kind: a negative result is -errno. This class makes
// the calls; tests override them. Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  static FileSystem& real();

  // Writes of at least so many bytes bypass the page cache, when alignment allows it.
  virtual std::size_t direct_bytes() const { return std::size_t{1} << 20; }

  virtual int open(const std::string& path, int flags);  // returns a descriptor
  virtual std::int64_t write_at(int file, const void* from, std::size_t bytes, std::int64_t offset);
  virtual int resize(int file, std::int64_t bytes);
  // Makes the kernel start writing a range to disk, so that the disk works while more data is prepared and
  // sync has little left to do. Only a hint: it promises nothing and reports no failure.
  virtual void start_flush(int file, std::int64_t offset, std::size_t bytes);
  virtual int sync(int file);
  virtual int close(int file);
  virtual int make_folder(const std::string& path);
  virtual int rename(const std::string& from, const std::string& to);
  virtual int remove_file(const std::string& path);
  virtual int remove_folder(const std::string& path);  // the folder must be empty
};

// A file being written. Interrupted and short writes are continued; every other failure is Error(runtime)
// with path and reason. One thread at a time.
//
// Large writes bypass the page cache (O_DIRECT), which would keep a core busy for most of the disk's time.
// This requires a file system that supports it, and data whose address and file offset are equal modulo
// kBlock. The unaligned rest at both ends is written through the page cache.
class OutputFile {
 public:
  static constexpr std::size_t kBlock = 4096;

  enum class Mode { create, existing };  // create empties an existing file
  OutputFile(FileSystem& files, std::string path, Mode mode);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept
      : files_(other.files_),
        path_(std::move(other.path_)),
        file_(std::exchange(other.file_, -1)),
        direct_(std::exchange(other.direct_, kUnknown)) {}
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  OutputFile& operator=(OutputFile&&) = delete;

  void resize(std::int64_t bytes);
  void write_at(const void* from, std::size_t bytes, std::int64_t offset);
  void sync();
  void close();

 private:
  static constexpr int kUnknown = -1, kNone = -2;

  // The first part of `bytes`, written by one call.
  struct Part {
    std::size_t bytes;
    bool direct;
  };
  Part part_of(const std::byte* data, std::size_t bytes, std::int64_t offset);
  bool open_direct();
  void close_direct();

  FileSystem& files_;
  std::string path_;
  int file_ = -1;
  int direct_ = kUnknown;  // a second descriptor of the file, with O_DIRECT
};

// Calls for folders; Error(runtime). make_folder accepts an existing folder. remove_tree accepts a missing
// one, and removes its contents first; a link is removed itself, and its target stays.
void make_folder(FileSystem& files, const std::string& path);
void sync_folder(FileSystem& files, const std::string& path);
void rename_path(FileSystem& files, const std::string& from, const std::string& to);
void remove_tree(FileSystem& files, const std::string& path);

// Writes a whole small file and flushes it to the disk.
void write_synced(FileSystem& files, const std::string& path, const std::string& content);

}  // namespace switchyard
