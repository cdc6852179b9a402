// HubWeights: the weights of a model under the names that Hugging Face's transformers gives them, whatever
// they are stored in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"

namespace switchyard {

// Some rows of a matrix of a stack.
struct StackRows {
  std::int64_t matrix, first, step, count;  // rows first, first + step, ...
};

class HubWeights {
 public:
  virtual ~HubWeights() = default;
  virtual const std::string& path() const = 0;
  virtual std::vector<std::string> names() const = 0;  // sorted
  virtual bool contains(const std::string& name) const = 0;
  // Error(usage) of the four below for a missing tensor.
  virtual Shape shape(const std::string& name) const = 0;
  virtual std::string dtype(const std::string& name) const = 0;  // as safetensors files call it: "F32", ...
  virtual Tensor read(const std::string& name) const = 0;        // f32 or bf16 where the weight is a float
  // Rows [begin, end) of its first dimension, whose pages in the file are then let go of.
  virtual Tensor take_rows(const std::string& name, std::int64_t begin, std::int64_t end) const = 0;
  // The same, but in float32 where the two above round a weight's values to bfloat16.
  virtual Tensor take_values(const std::string& name, std::int64_t begin, std::int64_t end) const {
    return take_rows(name, begin, end);
  }

  // The packed type (kernels/packed/packed_block.h) that can hold a matrix [out, in] bit for bit as it is
  // stored, in whole blocks; none where there is none. Error(usage) for a missing tensor.
  virtual std::optional<DType> packed_dtype(const std::string&) const { return std::nullopt; }
  // The matrix in blocks [in / 32, out / 16] of that type (CHECKed to be there), whose pages in the file are
  // then let go of. Error(usage) for a block that the type cannot hold after all.
  virtual Tensor take_blocks(const std::string& name) const {
    CHECK(false, "{} has no blocks", name);
    return {};
  }

  // The same of a stack of matrices [E, out, in], and of some rows of one of them, in blocks of which
  // rows.count is a multiple.
  virtual std::optional<DType> packed_stack_dtype(const std::string&) const { return std::nullopt; }
  virtual Tensor take_stack_blocks(const std::string& name, const StackRows&) const {
    CHECK(false, "{} has no blocks", name);
    return {};
  }
};

}  // namespace switchyard
