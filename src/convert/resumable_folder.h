// ResumableFolder: a folder of large files that appears all at once, and whose writing can be resumed.
//
// 1. Files are written in a separate folder beside the destination (.saving-<name>). It also holds a
//    journal, .conversion.json, which says what is made from what. The process that writes locks it.
// 2. A file is written under another name, flushed, and renamed: a file with its final name is complete.
// 3. At the end the folder is flushed and renamed to the destination; then the journal is removed.
// A later attempt with the same journal keeps the files of step 2; one with another journal starts over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/save.h"

namespace switchyard {

// A safetensors file to write: its header, and the place of each tensor's bytes.
struct PlannedFile {
  struct Place {
    std::size_t tensor;   // the caller's index
    std::int64_t offset;  // from the start of the file
    std::int64_t bytes;
  };
  std::string name;
  std::string header;  // length and JSON
  std::int64_t bytes = 0;
  std::vector<Place> tensors;  // in the order of their offsets
};

// The place of a folder that is to be written. Error(usage) that begins with `prefix` where the path names
// no folder, or one in a folder that does not exist.
SavePlace new_place(const std::string& prefix, const std::string& destination);

class ResumableFolder {
 public:
  // `job` is the journal: any data by which two conversions differ. `marker`: the file to write last into the
  // renamed folder; "": no such file. Error(usage) when the destination exists (unless it is empty or from an
  // earlier attempt) or another process is writing it.
  ResumableFolder(FileSystem& files, const std::string& destination, const nlohmann::json& job,
                  const std::string& marker);
  ~ResumableFolder();
  ResumableFolder(const ResumableFolder&) = delete;
  ResumableFolder& operator=(const ResumableFolder&) = delete;

  // True when an earlier attempt ended after the final rename: only finish() remains.
  bool is_done() const { return done_; }
  const SavePlace& place() const { return place_; }

  // True when an earlier attempt completed the file.
  bool has(const PlannedFile& file) const;
  // Writes the file. `make` returns a tensor's bytes. The next tensor
  // is made while the last one is written, so two are in memory.
  void write(const PlannedFile& file, const std::function<Tensor(std::size_t tensor)>& make);
  // Writes a small file below the folder.
  void write_small(const std::string& name, const std::string& content);

  // Flushes and renames the folder, unless commit() of a checkpoint has done so, and removes the journal.
  void finish();

 private:
  bool take_over(const std::string& journal, const std::string& marker);
  void begin(const std::string& journal);
  void lock(const std::string& path);

  FileSystem& files_;
  SavePlace place_;
  bool done_ = false;
  int lock_ = -1;
};

}  // namespace switchyard
