// HubWeights: a model's weights under the names of Hugging Face's transformers, independent of the format in
// which they are stored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"

namespace switchyard {

// A selection of rows from one matrix of a stack.
struct StackRows {
  std::int64_t matrix, first, step, count;  // rows first, first + step, ...
};

class HubWeights {
 public:
  virtual ~HubWeights() = default;
  virtual const std::string& path() const = 0;
  virtual std::vector<std::string> names() const = 0;  // sorted
  virtual bool contains(const std::string& name) const = 0;
  // The four functions below: Error(usage) for a missing tensor.
  virtual Shape shape(const std::string& name) const = 0;
  virtual std::string dtype(const std::string& name) const = 0;  // in safetensors' notation: "F32", ...
  virtual Tensor read(const std::string& name) const = 0;        // f32 or bf16 for floating-point weights
  // Rows [begin, end) of the first dimension; releases their pages of the file afterwards.
  virtual Tensor take_rows(const std::string& name, std::int64_t begin, std::int64_t end) const = 0;
  // Rows as take_rows gives them, but in float32 where take_rows rounds the values to bfloat16.
  virtual Tensor take_values(const std::string& name, std::int64_t begin, std::int64_t end) const {
    return take_rows(name, begin, end);
  }

  // The packed type (kernels/packed/packed_block.h) that holds a matrix [out, in] bit for bit as it is
  // stored, in whole blocks; none if there is no such type. Error(usage) for a missing tensor.
  virtual std::optional<DType> packed_dtype(const std::string&) const { return std::nullopt; }
  // The matrix in blocks [in / 32, out / 16] of that type (CHECKed to exist); releases its pages of the file
  // afterwards. Error(usage) for a block that the type cannot hold after all.
  virtual Tensor take_blocks(const std::string& name) const {
    CHECK(false, "{} has no blocks", name);
    return {};
  }

  // Both functions for a stack of matrices [E, out, in], and for some rows of one matrix; rows.count must be
  // a multiple of the rows of a block.
  virtual std::optional<DType> packed_stack_dtype(const std::string&) const { return std::nullopt; }
  virtual Tensor take_stack_blocks(const std::string& name, const StackRows&) const {
    CHECK(false, "{} has no blocks", name);
    return {};
  }

  // The name of the tensor in the files that this one is, or is a part of.
  virtual std::string stored_name(const std::string& name) const { return name; }
};

}  // namespace switchyard
