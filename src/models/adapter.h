// Adapter: the weights that a low-rank adapter (LoRA, Hu et al. 2021) adds to a model's, and where they act.
//
// A weight W of the model, [stack | inputs | outputs] (MatrixForm), gets two parameters beside it, in
// float32: W.lora_a [stack | inputs | r] and W.lora_b [stack | r | outputs]. A token's x·W becomes x·W +
// scale · (x·a)·b. The dims of `a` and `b` are laid out as W's, and r is whole, so that an adapter adds no
// collective to forward or backward. Gate and up projection of a layer's experts may have one `a`.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace switchyard {

struct ParameterSpec;

// How one weight is adapted.
struct AdaptedWeight {
  std::int64_t rank = 0;  // of one matrix of a stack
  float scale = 1;
  bool one_a = false;  // gate and up of experts: both read "moe.wi.lora_a"

  bool operator==(const AdaptedWeight&) const = default;
};

// How a new adapter's parameters are drawn: A uniform within ±1/√inputs, or normal with deviation 1/rank; B
// is 0, so that the model begins as it was, but not for tests.
enum class AdapterStart { usual, gaussian, test };

struct Adapter {
  std::map<std::string, AdaptedWeight> weights;  // by the weight's name
  // So many adapters stand side by side, and a token's number says which acts on it: 1 .. count, 0 for none.
  // A weight without a stack then has A [inputs | count·r] and B [count·r | outputs], and experts have
  // (count + 1) entries each, the first of which is 0. Count 0: one adapter, which acts on all tokens.
  std::int64_t count = 0;
  DType dtype = DType::f32;     // of its parameters: the activations' where nothing trains
  std::set<std::string> whole;  // weights that the adapter has in place of the model's
  AdapterStart start = AdapterStart::usual;

  bool operator==(const Adapter&) const = default;
};

// The names of a weight's two parameters.
std::string lora_a_of(const std::string& weight, const AdaptedWeight& how);
std::string lora_b_of(const std::string& weight);

// Returns W + scale · a·b, f32 in W's shape, summed in float64 and rounded once. `weight`: values of the
// spec's weight, or of some entries of its stack, as `a` and `b` (f32) then are of these.
Tensor merged_weight(const Tensor& weight, const ParameterSpec& spec, const AdaptedWeight& how,
                     const Tensor& a, const Tensor& b);

// Adds the adapter's parameters behind the weights that they belong to. Only they train then, and the weights
// that the adapter has whole. CHECKs that each weight of the adapter is a matrix among `specs`.
std::vector<ParameterSpec> with_adapter(std::vector<ParameterSpec> specs, const Adapter& adapter);

}  // namespace switchyard
