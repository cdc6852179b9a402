// Matrix products on a GPU: plain, batched, and grouped, where the sizes of the groups are on the device.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace switchyard::gpu {

// c = op(a) · op(b) + bias (+ c). A second term adds another product of the same form, before the one
// rounding.
struct ProductTerm {
  const void* a = nullptr;
  const std::int32_t* a_rows = nullptr;  // a's stored row i is row a_rows[i]; null: row i
  const void* b = nullptr;
  std::int64_t k = 0;
};

enum class Groups : std::uint8_t {
  none,   // `batch` products; strides say how far apart their operands are
  rows,   // the rows of a and c in groups; each has a b (and a bias) of its own
  depth,  // the depth in groups, rows of a as stored (transposed) and of b; each has a c of its own
};

struct Product {
  DType dtype = DType::f32;  // of a, b and bias
  DType c_dtype = DType::f32;
  std::int64_t m = 0, n = 0;  // m: of all groups of rows
  ProductTerm terms[2] = {};
  int term_count = 1;
  bool transpose_a = false, transpose_b = false;
  std::int64_t lda = 0, ldb = 0, ldc = 0;  // elements from a stored row to the next
  void* c = nullptr;
  const void* bias = nullptr;  // [n]
  bool accumulate = false;
  Groups groups = Groups::none;
  std::int64_t batch = 1;                                                  // products, or groups
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0, bias_stride = 0;  // elements from one to the next
  const std::int32_t* group_sizes = nullptr;                               // [batch], on the device
  std::int64_t depth_rows = 0;  // of groups of depth: rows of all groups
};
void run_product(const Product& product);

}  // namespace switchyard::gpu
