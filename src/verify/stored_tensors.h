// Compares the tensors of a packed file with what the file's writer states about their float32 values.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "core/tensor.h"
#include "verify/report.h"

namespace switchyard {

// Reads the tensors to check.
struct TensorReader {
  std::string path;                 // for messages
  std::vector<std::string> needed;  // names that must be stated
  std::function<bool(const std::string&)> contains;
  std::function<Shape(const std::string&)> shape;
  // Reads rows [begin, end) of the tensor as a matrix [rows, last dim], f32.
  std::function<Tensor(const std::string&, std::int64_t begin, std::int64_t end)> rows;
};

// The stated facts: for each name an object with "type", "shape", "sha256" (of all
// float32 values, little endian, row-major) and, if the values of some rows are
// given, "rows" with their numbers. These rows are `tensor.<name>` in `values`.
struct StatedTensors {
  std::string path;  // for messages
  nlohmann::json tensors;
  const SafetensorsFile& values;
};

// True when values of the type are a product plus an offset,
// so that two ways to compute them may differ in the last bit.
bool has_offset(const std::string& type);

// Adds a row for every stated tensor. It passes when the hash is equal. For a type with
// an offset it also passes when given rows differ from ours by one ulp in some places and
// nowhere by more (equal rows would not explain the different hash). Throws Error(usage)
// when a needed tensor is not stated, a stated one is missing or has another shape,
// `values` has rows that are not stated or lacks stated ones, or nothing is stated.
void compare_stored_tensors(const TensorReader& reader, const StatedTensors& stated, CaseReport& report);

}  // namespace switchyard
