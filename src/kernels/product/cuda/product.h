// Matrix products on a GPU: plain, batched, and grouped, where the sizes of the groups are on the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "core/tensor_view.h"
#include "kernels/product/product.h"

namespace switchyard::gpu {

// c = op(a) · op(b) + bias (+ c). More terms add other products of the same form, before the one rounding;
// groups of depth have one term.
struct ProductTerm {
  const void* a = nullptr;
  const std::int32_t* a_rows = nullptr;  // a's stored row i is row a_rows[i]; null: row i
  const void* b = nullptr;
  std::int64_t k = 0;
  std::int64_t lda = 0, ldb = 0;  // elements from a stored row to the next
};

constexpr int kMostTerms = 4;

using Groups = Product::Groups;

// A product (kernels/product/product.h) as kernels get it, by value: addresses and strides.
struct DeviceProduct {
  DType dtype = DType::f32;  // of a, b and bias
  DType c_dtype = DType::f32;
  DType weight_dtype = DType::f32;  // of b: `dtype`, or packed: [k/32, n/16] blocks, ldb of them a row
  std::int64_t m = 0, n = 0;        // m: of all groups of rows
  ProductTerm terms[kMostTerms] = {};
  int term_count = 1;
  bool transpose_a = false, transpose_b = false;
  std::int64_t ldc = 0;  // elements from a row of c to the next
  void* c = nullptr;
  const void* bias = nullptr;  // [n]
  bool accumulate = false;
  Groups groups = Groups::none;
  std::int64_t batch = 1;                                                  // products, or groups
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0, bias_stride = 0;  // elements from one to the next
  const std::int32_t* group_sizes = nullptr;                               // [batch], on the device
  std::int64_t depth_rows = 0;  // of groups of depth: rows of all groups

  bool is_empty() const { return m == 0 || n == 0 || batch == 0; }
};

// Products that a row of the table may take together: of one a, so of the same rows and depth, and of one
// form; b, n and c are each product's own. They have one term, no groups and are no batch.
constexpr int kMostProducts = 4;
using DeviceProducts = std::span<const DeviceProduct>;
inline DeviceProducts alone(const DeviceProduct& p) {
  return {&p, 1};
}

// The products of `product` as kernels read them: one, or one for each right operand. None where that is
// more than a kernel takes: several right operands of groups or of a batch, more than kMostProducts of them
// or kMostTerms terms, several terms with packed weights, an activation.
std::vector<DeviceProduct> lowered(const Product& product);
// The product with one of its right operands alone, and without its activation. kMostTerms terms at most.
DeviceProduct lowered_alone(const Product& product, const Product::Right& right);

// The rows, and their reasons not to take a product (null: taken). Results differ in the order of sums alone.
// A row that takes DeviceProducts computes products of one a in one launch; others take one product.
// 1. few_rows_packed: 2 to 64 rows a group on average, packed weights as they are stored; mma.sync.
// 2. few_rows_wgmma: 4 to 64 rows of bfloat16, with weights that are read once; wgmma (Hopper).
// 3. few_rows: memory bounds it, so weights are read once, as they are stored.
// 4. tma_split: few tiles and a long depth, which the blocks of a cluster share; wgmma (Hopper).
// 5. tma: operands come by copies of tensor maps, to two blocks of threads at once; wgmma (Hopper).
// 6. wgmma: operands come by cp.async; wgmma (Hopper).
// 7. mma: bfloat16 on tensor cores by mma.sync.
// 8. plain: float32 units.
void few_rows_packed_product(DeviceProducts args);
const char* few_rows_packed_refuses(DeviceProducts args);
void few_rows_wgmma(DeviceProducts args);
const char* few_rows_wgmma_refuses(DeviceProducts args);
void few_rows_product(DeviceProducts args);
const char* few_rows_refuses(DeviceProducts args);
void split_product(DeviceProducts args);
const char* split_refuses(DeviceProducts args);
void tma_product(DeviceProducts args);
const char* tma_refuses(DeviceProducts args);
void wgmma_product(const DeviceProduct& p);
const char* wgmma_refuses(const DeviceProduct& p);
void mma_product(const DeviceProduct& p);
const char* mma_refuses(const DeviceProduct& p);
void plain_product(const DeviceProduct& p);

// True where rows are so many that looking them up beforehand pays: for tma.
bool pays_to_gather(const DeviceProduct& product);

}  // namespace switchyard::gpu
