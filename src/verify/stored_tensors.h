// Tensors of a file of few bits against what its writer states of their float32 values.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "core/tensor.h"
#include "verify/report.h"

namespace switchyard {

// The tensors that were read.
struct TensorReader {
  std::string path;                 // for messages
  std::vector<std::string> needed;  // names of those that must be stated
  std::function<bool(const std::string&)> contains;
  std::function<Shape(const std::string&)> shape;
  // Rows [begin, end) of the tensor seen as a matrix [rows, last dim], f32.
  std::function<Tensor(const std::string&, std::int64_t begin, std::int64_t end)> rows;
};

// What is stated: for each name an object of "type", "shape", "sha256" (of all float32 values, little endian,
// row-major) and, where some rows are given by value, "rows": which. Those rows are `tensor.<name>` in
// `values`.
struct StatedTensors {
  std::string path;  // for messages
  nlohmann::json tensors;
  const SafetensorsFile& values;
};

// Whether values of the type are a product plus an offset, so that two ways to compute them may differ in the
// last bit.
bool has_offset(const std::string& type);

// Adds a row for every stated tensor, which passes where the hash is equal; of a type with an offset also
// where some rows are given by value, and their values are off by an ulp in places and nowhere by more (off
// nowhere, they do not say why the hash differs). Throws Error(usage)
// where a needed tensor is not stated, where a stated one is not there or has another shape, where `values`
// has rows that are not stated or no such rows, and where nothing is stated at all.
void compare_stored_tensors(const TensorReader& reader, const StatedTensors& stated, CaseReport& report);

}  // namespace switchyard
