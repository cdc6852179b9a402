// HubWeights: the weights of a model under the names that Hugging Face's transformers gives them, whatever
// they are stored in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace switchyard {

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
};

}  // namespace switchyard
