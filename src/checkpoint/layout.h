// CheckpointLayout: the tensors that a checkpoint holds, and the file and byte offset of each.
//
// It depends on the tensors alone, so every rank that knows the model computes the same layout.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/box.h"

namespace switchyard {

// The tensors that store one parameter. A stack of experts [E,…] is E tensors: expert 17 of
// `layers.3.moe.wi_0` is `layers.3.moe.experts.17.wi_0`. Any other parameter is one tensor of its own name.
struct StoredParameter {
  std::vector<std::string> names;
  Shape shape;  // of each tensor
  bool is_stack = false;
};
StoredParameter stored_parameter(const std::string& parameter, const Shape& shape);

// A type's name in a manifest: safetensors_dtype(), or the own name of a packed type ("int4").
std::string stored_dtype_name(DType dtype);
// The type with this name: Error(usage) naming `where` for any other word.
DType stored_dtype(const std::string& type, const std::string& where);

struct StoredTensor {
  std::string name;
  DType dtype;
  Shape shape;
  bool optimizer = false;  // stored in the optimizer's files
};

class CheckpointLayout {
 public:
  static constexpr std::int64_t kFileBytes = std::int64_t{2} << 30;  // largest size before a new file begins

  struct File {
    std::string name;    // "weights-00001.safetensors"
    std::string header;  // the file's first bytes: length and JSON
    std::int64_t bytes;  // of the whole file
  };
  struct Place {
    std::size_t file;
    std::int64_t offset;  // bytes from the start of the file
  };

  // Names must differ (CHECK). A tensor larger than `file_bytes` gets a file of its own.
  explicit CheckpointLayout(std::vector<StoredTensor> tensors, std::int64_t file_bytes = kFileBytes);

  const std::vector<File>& files() const { return files_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const Place& place(std::size_t tensor) const { return places_[tensor]; }
  std::size_t index_of(const std::string& name) const;  // CHECKs that the name exists

 private:
  void add_file(const std::vector<std::size_t>& tensors, const std::string& name);

  std::vector<StoredTensor> tensors_;
  std::vector<Place> places_;  // by tensor
  std::vector<File> files_;
  std::map<std::string, std::size_t> index_;
};

}  // namespace switchyard
