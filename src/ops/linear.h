// Linear: a weight with what is done to it, as attention, MLPs and experts use it.
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>

#include "autograd/op.h"

namespace switchyard {

// What a low-rank adapter (LoRA, Hu et al. 2021) adds to x·W: scale · (x·a)·b.
//
// W's dims are [stack | inputs | outputs], the stack being experts or nothing. `a` is [stack | inputs | r]
// and `b` [stack | r | outputs]; their numbers of dims say where W's dims fall. Their type may be wider than
// the activations', in which both products run. `a` is laid out as W's stack and inputs, `b` as W's stack and
// outputs, r is whole. W may be packed, or require no gradient: `a` and `b` get theirs all the same.
struct LowRank {
  Array a, b;
  float scale = 1;
};

struct Linear {
  Array weight;     // in the activations' dtype, or packed
  Array bias = {};  // [outputs], or [stack | outputs] of experts; undefined: none
  std::optional<LowRank> adapter = {};

  // x·W and what the adapter adds, without the bias: einsum(spec, x, weight) (ops/einsum.h).
  Array project(Context& context, std::string_view spec, const Array& x,
                const Sharding* want = nullptr) const;
  // The same and the bias, for a weight without a stack.
  Array apply(Context& context, std::string_view spec, const Array& x, const Sharding* want = nullptr) const;
  Array apply(Context& context, std::string_view spec, const Array& x,
              std::initializer_list<std::string_view> logical_dims) const;
  Array with_bias(Context& context, const Array& y) const;

  // Rows [R,K] sorted by expert, `sizes` i32 [G] of each, times the experts' weights [G,K,N], and what the
  // adapter adds; without the bias, which experts have in other ops (moe/expert_biases.h).
  Array grouped_apply(Context& context, const Array& rows, const Array& sizes) const;
  // y [R,N] and scale · low·b, where `low` [R,r] is rows·a; y itself without an adapter.
  Array with_low_rank(Context& context, const Array& y, const Array& low, const Array& sizes) const;

  // W + scale · a·b in W's dtype; W itself without an adapter. W is not packed.
  Array merged(Context& context) const;
};

}  // namespace switchyard
