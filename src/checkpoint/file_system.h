// FileSystem: the system calls by which checkpoints are written, so that tests can make each of them fail and
// can replay them up to a power cut. Nothing of a checkpoint reaches the disk by another way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace switchyard {

// Each function is the system call of its kind: a negative result is -errno. This class makes the calls;
// others derive from it. Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  static FileSystem& real();

  // From so many bytes on a write goes past the page cache, where memory and place allow.
  virtual std::size_t direct_bytes() const { return std::size_t{1} << 20; }

  virtual int open(const std::string& path, int flags);  // a descriptor
  virtual std::int64_t write_at(int file, const void* from, std::size_t bytes, std::int64_t offset);
  virtual int resize(int file, std::int64_t bytes);
  // Has the kernel begin to write a range back, so that the disk works while more is made ready and sync has
  // little left to do. A hint: it promises nothing and fails unseen.
  virtual void start_flush(int file, std::int64_t offset, std::size_t bytes);
  virtual int sync(int file);
  virtual int close(int file);
  virtual int make_folder(const std::string& path);
  virtual int rename(const std::string& from, const std::string& to);
  virtual int remove_file(const std::string& path);
  virtual int remove_folder(const std::string& path);  // an empty one
};

// A file being written. Interrupted and short writes go on; every other failure is Error(runtime) with path
// and reason. One thread at a time.
//
// Large writes go past the page cache (O_DIRECT), which otherwise costs a core most of the time that the disk
// takes: where the file system can, and memory lies as far behind a multiple of kBlock as its place in the
// file. What is left at both ends of them goes the usual way.
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

  // The first of `bytes` that are written by one call.
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
  int direct_ = kUnknown;  // the same file without the page cache
};

// The same for folders; Error(runtime). make_folder takes one that exists; remove_tree one that does not, and
// removes what is in it first. A link is removed itself, and what it names stays.
void make_folder(FileSystem& files, const std::string& path);
void sync_folder(FileSystem& files, const std::string& path);
void rename_path(FileSystem& files, const std::string& from, const std::string& to);
void remove_tree(FileSystem& files, const std::string& path);

// A whole small file, flushed to the disk.
void write_synced(FileSystem& files, const std::string& path, const std::string& content);

}  // namespace switchyard
