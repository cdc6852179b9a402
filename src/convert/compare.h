// How two sources of tensors differ, tensor by tensor.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "convert/tensor_source.h"
#include "convert/values.h"

namespace switchyard {

struct TensorComparison {
  std::string name;              // as in A
  std::string shape_a, shape_b;  // differ where the tensors cannot be compared
  std::string dtype_a, dtype_b;
  std::optional<Difference> difference;  // none where shapes differ or a dtype is no number
  bool equal = false;                    // same shape and values; also the same bytes of no known numbers
  // One side is bfloat16, and the other rounds to it.
  bool equal_in_bf16() const;
};

struct SourceComparison {
  std::vector<TensorComparison> tensors;          // those on both sides
  std::vector<std::string> only_in_a, only_in_b;  // by the names of their side
  bool equal() const;
};

// By name; a Hugging Face folder against a checkpoint by what is the same parameter, transposed as needed.
// Optimizer state that only a checkpoint can have is left out then. Error(usage) when the folder's
// config.json is needed and missing.
SourceComparison compare_sources(const TensorSource& a, const TensorSource& b);

// Tensors that differ, or all of them.
std::string comparison_text(const SourceComparison& comparison, const std::string& a, const std::string& b,
                            bool all);
nlohmann::json comparison_json(const SourceComparison& comparison);

}  // namespace switchyard
