// CheckpointLayout: which tensors a checkpoint holds, and at which byte of which file each of them stands.
//
// A function of the tensors alone, so every rank that knows the model computes the same.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/box.h"

namespace switchyard {

// The tensors that one of our parameters is stored as. A stack of experts [E,…] is E tensors: expert 17 of
// `layers.3.moe.wi_0` is `layers.3.moe.experts.17.wi_0`. All others are one tensor of their own name.
struct StoredParameter {
  std::vector<std::string> names;
  Shape shape;  // of each
  bool is_stack = false;
};
StoredParameter stored_parameter(const std::string& parameter, const Shape& shape);

// How a manifest names a type: as safetensors_dtype(), or a packed type by its own name ("int4").
std::string stored_dtype_name(DType dtype);
// That type: Error(usage) naming `where` for any other word.
DType stored_dtype(const std::string& type, const std::string& where);

struct StoredTensor {
  std::string name;
  DType dtype;
  Shape shape;
  bool optimizer = false;  // goes to the optimizer's files
};

class CheckpointLayout {
 public:
  static constexpr std::int64_t kFileBytes = std::int64_t{2} << 30;  // where a file is cut

  struct File {
    std::string name;    // "weights-00001.safetensors"
    std::string header;  // its first bytes: length and JSON
    std::int64_t bytes;  // of the whole file
  };
  struct Place {
    std::size_t file;
    std::int64_t offset;  // bytes from the file's begin
  };

  // Names must differ (CHECK). A tensor larger than `file_bytes` has a file of its own.
  explicit CheckpointLayout(std::vector<StoredTensor> tensors, std::int64_t file_bytes = kFileBytes);

  const std::vector<File>& files() const { return files_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const Place& place(std::size_t tensor) const { return places_[tensor]; }
  std::size_t index_of(const std::string& name) const;  // CHECKs that it is there

 private:
  void add_file(const std::vector<std::size_t>& tensors, const std::string& name);

  std::vector<StoredTensor> tensors_;
  std::vector<Place> places_;  // of each tensor
  std::vector<File> files_;
  std::map<std::string, std::size_t> index_;
};

}  // namespace switchyard
