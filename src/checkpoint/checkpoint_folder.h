// CheckpointFolder: opens and reads a checkpoint, and verifies its hashes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/verified_chunks.h"
#include "core/tensor.h"

namespace switchyard {

class CheckpointFolder {
 public:
  // Checks the marker, the manifest's hash and form, and every file's size and header (hash and content). No
  // tensor is read yet. Error(usage): one line that names the file and the broken rule.
  static CheckpointFolder open(const std::string& folder);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  bool contains(const std::string& tensor) const { return index_.contains(tensor); }
  const ManifestTensor& tensor(const std::string& name) const;  // Error(usage) when missing

  // Reads the elements of a box of a tensor, in row-major order and the tensor's dtype, to `to`. Reads only
  // the chunks that the box touches, and compares each chunk's hash: Error(usage) naming tensor, chunk and
  // file when it differs, Error(runtime) when the disk fails. If this object or a copy of it has verified a
  // chunk before, only the box's part is read, and not verified again: ranks that share a checkpoint share
  // that work. The box must be inside the tensor (CHECK). Thread-safe.
  void read(const std::string& tensor, const Box& box, void* to) const;
  Tensor read(const std::string& tensor, const Box& box) const;
  Tensor read(const std::string& tensor) const;

  // Reads a box of a parameter, whose experts are stored one by one (checkpoint/layout.h), or of its
  // optimizer state with `suffix` ".mu" or ".nu"; `shape` and `box` are the parameter's.
  void read_parameter(const std::string& parameter, const Shape& shape, const std::string& suffix,
                      const Box& box, void* to) const;

  // Returns a parameter's box as read-only memory of the mapped file, if its elements are contiguous there:
  // part of one tensor, or whole experts one after the other in one file. Undefined if they are not. The
  // chunks that the box touches are verified, each once, by as many threads as there are cores.
  Tensor map_parameter(const std::string& parameter, const Shape& shape, const Box& box) const;

  // Reads and hashes every byte. The errors of read(), for the first chunk that differs.
  void prove() const;

  // The number of chunks that read() used in part and verified, in this object and its copies.
  std::int64_t verified_chunks() const { return verified_->verified(); }

 private:
  struct File;
  void open_file(const ManifestFile& file);
  void check_entry(const ManifestTensor& tensor);
  void read_chunk(const ManifestTensor& tensor, const Chunk& chunk, std::byte* to) const;
  void read_part(const ManifestTensor& tensor, std::size_t index, const Box& part, std::byte* to) const;
  void read_box(const ManifestTensor& tensor, const Box& box, std::int64_t shortest, std::byte* to) const;
  [[noreturn]] void fail_damaged(const ManifestTensor& tensor, const Chunk& chunk) const;
  void verify_mapped(const ManifestTensor& tensor, std::size_t chunk) const;

  std::string path_;
  Manifest manifest_;
  std::vector<std::shared_ptr<const File>> files_;   // as in the manifest
  std::map<std::string, std::size_t> index_;         // by tensor name
  std::map<std::string, std::int64_t> offsets_;      // by tensor name, within the tensor's file
  std::map<std::string, std::size_t> first_chunks_;  // by tensor name, index in verified_
  std::shared_ptr<VerifiedChunks> verified_;
};

// True when the folder has a marker, which is written last, so the checkpoint should be complete.
bool has_marker(const std::string& folder);

// The checkpoints below RUN/checkpoints that have a marker, newest first.
struct FoundCheckpoint {
  std::int64_t step;
  std::string path;
};
std::vector<FoundCheckpoint> find_checkpoints(const std::string& checkpoints);

// Opens the newest checkpoint of the list that can be opened; each newer one that cannot is reported in
// `skipped`, one line each. Error(usage) when none can be opened. The list must not be empty.
CheckpointFolder open_newest(const std::vector<FoundCheckpoint>& found, std::vector<std::string>* skipped);

// True when `path` is a checkpoint, a run's folder with checkpoints, or its folder `checkpoints`.
bool is_checkpoint_path(const std::string& path);
// Opens that checkpoint; for a run, the newest that can be opened. Error(usage).
CheckpointFolder open_checkpoint(const std::string& path, std::vector<std::string>* skipped);

}  // namespace switchyard
