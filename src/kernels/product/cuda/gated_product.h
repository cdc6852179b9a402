// The products of gated experts with their activation: gate and up as one product (gmm_pair of
// kernels/product/grouped_matmul.h), and the way back through down (kernels/product/gated_down.h).
#pragma once

#include "kernels/product/cuda/product.h"
#include "kernels/product/gated_down.h"
#include "kernels/product/grouped_matmul.h"

namespace switchyard::gpu {

// By the first row of the table (gated_product.cc) that accepts. Both rows have the same bits where the
// products of the second are those of tma_product.
void run_gated_product(const GmmPairArgs& args);

// 1. hopper: gate and up of 128 columns are one tile of 256; rows are looked up by the product.
// 2. composed: rows looked up first where that pays, two products, swiglu.
void hopper_gated_product(const GmmPairArgs& args);
const char* hopper_gated_refuses(const GmmPairArgs& args);
void composed_gated_product(const GmmPairArgs& args);

// The way back through down, likewise. hopper: dgate, dup and hidden have the bits of the other; drow_weights
// is a sum in another order.
void hopper_gated_down(const GatedDownBackwardArgs& args);
const char* hopper_gated_down_refuses(const GatedDownBackwardArgs& args);
void composed_gated_down(const GatedDownBackwardArgs& args);

// Rows of `a` [*,k], looked up by `index` where that is defined, in groups, times weights [G,k,n] of their
// group, which are left out, into c [rows,n].
Product of_row_groups(const TensorView& a, const TensorView& index, const TensorView& group_sizes,
                      const TensorView& c);
// This has the weights transposed: dy [rows,n] times [G,k,n] into c [rows,k].
Product of_row_groups_back(const TensorView& dy, const TensorView& group_sizes, const TensorView& c);

}  // namespace switchyard::gpu
