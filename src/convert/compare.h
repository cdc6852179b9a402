// Compares two sources of tensors, tensor by tensor.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "convert/tensor_source.h"
#include "convert/values.h"

namespace switchyard {

struct TensorComparison {
  std::string name;              // the name in A
  std::string shape_a, shape_b;  // when they differ, the tensors cannot be compared
  std::string dtype_a, dtype_b;
  std::optional<Difference> difference;  // none when shapes differ or a dtype is not numeric
  bool equal = false;                    // same shape and values (not numeric: the same bytes)
  // True when one side is bfloat16 and the other side rounds to it.
  bool equal_in_bf16() const;
};

struct SourceComparison {
  std::vector<TensorComparison> tensors;          // tensors on both sides
  std::vector<std::string> only_in_a, only_in_b;  // by that side's names
  bool equal() const;
};

// Compares by name; compares a Hugging Face folder with a checkpoint by parameter, transposed as needed, and
// then leaves out optimizer state, which only a checkpoint can have. Error(usage) when the folder's
// config.json is needed and missing.
SourceComparison compare_sources(const TensorSource& a, const TensorSource& b);

// A table of the tensors that differ, or of all.
std::string comparison_text(const SourceComparison& comparison, const std::string& a, const std::string& b,
                            bool all);
nlohmann::json comparison_json(const SourceComparison& comparison);

}  // namespace switchyard
