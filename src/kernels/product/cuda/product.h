// Matrix products on a GPU: plain, batched, and grouped, where the sizes of the groups are on the device.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/tensor_view.h"

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

enum class Groups : std::uint8_t {
  none,   // `batch` products; strides say how far apart their operands are
  rows,   // the rows of a and c in groups; each has a b (and a bias) of its own
  depth,  // the depth in groups, rows of a as stored (transposed) and of b; each has a c of its own
};

struct Product {
  DType dtype = DType::f32;  // of a, b and bias
  DType c_dtype = DType::f32;
  std::int64_t m = 0, n = 0;  // m: of all groups of rows
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
};

// Products that a row of the table may take together: of one a, so of the same rows and depth, and of one
// form; b, n and c are each product's own. They have one term, no groups and are no batch.
constexpr int kMostProducts = 4;

// The arguments of a row of the table.
struct ProductArgs {
  Product product;
  // A packed b: [k/32, n/16] blocks, or [batch, k/32, n/16]; k and n are the product's.
  // Undefined where b is not packed.
  TensorView packed = {};

  bool is_empty() const { return product.m == 0 || product.n == 0 || product.batch == 0; }
};
// ProductsArgs has the arguments of one product, or of products of one a.
struct ProductsArgs : std::span<const ProductArgs> {
  using std::span<const ProductArgs>::span;
  ProductsArgs(const ProductArgs& one) : span(&one, 1) {}  // NOLINT: implicit, as a call with one product is
};

// Computes the product, or the products of one a (kMostProducts at most), by the first row of the table
// (product_table.cc) that accepts it, or them all. `op` names the caller.
void run_product(const char* op, const ProductArgs& args);
void run_products(const char* op, ProductsArgs args);

// The rows, and their reasons not to take a product (null: taken). Results differ in the order of sums alone.
// A row that takes ProductsArgs computes products of one a in one launch; else they run one after the other.
// 1. few_rows_packed: 2 to 64 rows a group on average, packed weights as they are stored; mma.sync.
// 2. few_rows_wgmma: 4 to 64 rows of bfloat16, with weights that are read once; wgmma (Hopper).
// 3. few_rows: memory bounds it, so weights are read once, as they are stored.
// 4. unpacked: packed weights as elements of the type of what they are multiplied with, then the table again.
// 5. tma_split: few tiles and a long depth, which the blocks of a cluster share; wgmma (Hopper).
// 6. tma: operands come by copies of tensor maps, to two blocks of threads at once; wgmma (Hopper).
// 7. wgmma: operands come by cp.async; wgmma (Hopper).
// 8. mma: bfloat16 on tensor cores by mma.sync.
// 9. plain: float32 units.
void few_rows_packed_product(ProductsArgs args);
const char* few_rows_packed_refuses(ProductsArgs args);
void few_rows_wgmma(ProductsArgs args);
const char* few_rows_wgmma_refuses(ProductsArgs args);
void few_rows_product(ProductsArgs args);
const char* few_rows_refuses(ProductsArgs args);
void unpacked_product(const ProductArgs& args);
const char* unpacked_refuses(const ProductArgs& args);
void split_product(ProductsArgs args);
const char* split_refuses(ProductsArgs args);
void tma_product(ProductsArgs args);
const char* tma_refuses(ProductsArgs args);
void wgmma_product(const ProductArgs& args);
const char* wgmma_refuses(const ProductArgs& args);
void mma_product(const ProductArgs& args);
const char* mma_refuses(const ProductArgs& args);
void plain_product(const ProductArgs& args);

// True where rows are so many that looking them up beforehand pays: for tma.
bool pays_to_gather(const Product& product);

}  // namespace switchyard::gpu
