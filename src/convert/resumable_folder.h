// ResumableFolder: a folder of large files that appears whole, and whose making goes on where it was ended.
//
// 1. Files are made in a folder of their own beside the destination (.saving-<name>). Among them lies a
//    journal, .conversion.json, which says what is being made from what and is locked by who makes it.
// 2. A file is written under another name, flushed, and renamed: one that has its final name is complete.
// 3. At the end the folder is flushed and renamed to the destination; then the journal is removed.
// A later attempt with the same journal keeps the files of step 2; one with another begins anew.
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

// A safetensors file to be written: its header, and where each tensor's bytes go.
struct PlannedFile {
  struct Place {
    std::size_t tensor;   // the caller's number
    std::int64_t offset;  // from the file's begin
    std::int64_t bytes;
  };
  std::string name;
  std::string header;  // length and JSON
  std::int64_t bytes = 0;
  std::vector<Place> tensors;  // in the order of their offsets
};

class ResumableFolder {
 public:
  // `job` is the journal: anything by which two conversions differ. `marker`: the file that is written into
  // the renamed folder last of all, "" where there is none. Error(usage) when the destination exists (an
  // empty folder and what an earlier attempt left excepted) or another process is writing it.
  ResumableFolder(FileSystem& files, const std::string& destination, const nlohmann::json& job,
                  const std::string& marker);
  ~ResumableFolder();
  ResumableFolder(const ResumableFolder&) = delete;
  ResumableFolder& operator=(const ResumableFolder&) = delete;

  // Whether an earlier attempt was ended after the last rename: nothing is left to do but finish().
  bool is_done() const { return done_; }
  const SavePlace& place() const { return place_; }

  // Whether the file is there already, of an earlier attempt.
  bool has(const PlannedFile& file) const;
  // Makes the file. `make` gives a tensor's bytes; the next is made while the last one is written, so two are
  // in memory.
  void write(const PlannedFile& file, const std::function<Tensor(std::size_t tensor)>& make);
  // A small file, below the folder.
  void write_small(const std::string& name, const std::string& content);

  // Flushes and renames the folder, where commit() of a checkpoint has not done so, and removes the journal.
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
