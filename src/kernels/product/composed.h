// Products made of simpler ones: rows of the table (product_table.cc) for what no kernel takes at once.
#pragma once

#include "kernels/product/product.h"

namespace switchyard {

// Computes, on any device,
// 1. an activation: two products, then swiglu. Results that are not wanted are made all the same.
// 2. a sum: product after product. Groups of rows add up in float32. Whole matrices add up in c as it is
//    stored: on a GPU after every kMostTerms terms, on a CPU after each term.
// 3. groups that share right operands, on a GPU: as fewer groups.
// 4. several right operands: one after the other, or as many together as kernels take.
// Rows are looked up first: on a CPU always, on a GPU where that pays.
void composed_product(ThreadPool& pool, const Product& product);

// Computes a product with packed weights from the dense ones, on a GPU. A CPU unpacks them piece by piece.
void unpacked_product(ThreadPool& pool, const Product& product);

}  // namespace switchyard
