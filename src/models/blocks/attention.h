// Code that the two forms of attention share.
#pragma once

#include "models/blocks/layers.h"
#include "models/blocks/spec_list.h"

namespace switchyard {

inline constexpr std::string_view kToHeads = "BSM,MND->BSND";

// The layout of queries [B,S,N,D], or with `kv` of keys and values.
Sharding heads_sharding(const Context& context, const AttentionKind& kind, const Shape& shape, bool kv);
AttentionOptions attention_options(const LayerCall& call);
// x with M whole, its tokens laid out as those of the queries.
Array attention_input(const LayerCall& call, const Array& x);
Array project_out(const LayerCall& call, const Array& attended);

// The weights of project_out(), whose names begin with `p`.
void out_specs(const ModelConfig& model, const AttentionKind& kind, const std::string& p, SpecList& list);
// Multiply-adds of a token in project_out(), and with `keys` keys of `qk` values in each head.
double attended_products(const ModelConfig& model, const AttentionKind& kind, std::int64_t qk, double keys);
// The keys that a token of a causal sequence sees in the mean.
inline double mean_keys(std::int64_t sequence) {
  return static_cast<double>(sequence) / 2;
}

}  // namespace switchyard
