// Linear: a weight with its bias and adapter, for attention, MLPs and experts.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "autograd/op.h"

namespace switchyard {

// A low-rank adapter (LoRA, Hu et al. 2021), which adds scale · (x·a)·b to x·W.
//
// W's dims are [stack | inputs | outputs]; the stack is the experts, or empty. `a` is [stack | inputs | r]
// and `b` [stack | r | outputs]; their numbers of dims tell which dims of W are which. Their type may be
// wider than the activations'; both products use it. `a` is sharded as W's stack and inputs, `b` as W's stack
// and outputs, r is whole. W may be packed, or require no gradient: `a` and `b` still get theirs.
//
// Several adapters may stand side by side (models/adapter.h), of which each token has one or none: `numbers`
// i32 [B,S] says which of 1 .. count, 0: none. They have no gradients.
struct LowRank {
  Array a, b;
  float scale = 1;
  Array numbers = {};
  std::int64_t count = 0;

  // Both for a product of rows of a type: in it, `b` with the scale.
  Array a_in(Context& context, DType dtype) const;
  Array b_in(Context& context, DType dtype) const;
};

struct Linear {
  Array weight;     // in the activations' dtype, or packed
  Array bias = {};  // [outputs], or [stack | outputs] for experts; undefined: none
  std::optional<LowRank> adapter = {};

  // x·W plus the adapter's part, without the bias: einsum(spec, x, weight) (ops/einsum.h).
  Array project(Context& context, std::string_view spec, const Array& x,
                const Sharding* want = nullptr) const;
  // project() plus the bias, for a weight without a stack.
  Array apply(Context& context, std::string_view spec, const Array& x, const Sharding* want = nullptr) const;
  Array apply(Context& context, std::string_view spec, const Array& x,
              std::initializer_list<std::string_view> logical_dims) const;
  Array with_bias(Context& context, const Array& y) const;

  // Rows [R,K] sorted by expert, with `sizes` i32 [G] rows each, times the experts' weights [G,K,N], plus the
  // adapter's part; without the bias, which moe/expert_biases.h adds for experts. `of_adapters` are the sizes
  // of the groups that a and b are stacked by, where these are not `sizes`: with several adapters they are
  // parts of the experts.
  Array grouped_apply(Context& context, const Array& rows, const Array& sizes,
                      const Array& of_adapters = {}) const;

  // W + scale · a·b in W's dtype; W itself without an adapter. W must not be packed.
  Array merged(Context& context) const;
};

// True when the adapters of both have one `a`, so that one product with it serves both.
bool share_a(const Linear& x, const Linear& y);

// Layers of one x, whose products with W run together (einsums).
std::vector<Array> project_each(Context& context, std::string_view spec, const Array& x,
                                std::span<const Linear> layers, std::span<const Sharding* const> want);
// All in one layout, with their biases.
std::vector<Array> apply_each(Context& context, std::string_view spec, const Array& x,
                              std::span<const Linear> layers, const Sharding& want);
std::vector<Array> apply_each(Context& context, std::string_view spec, const Array& x,
                              std::span<const Linear> layers,
                              std::initializer_list<std::string_view> logical_dims);

}  // namespace switchyard
