// Shapes of MoE layers, and how their rows are spread over the experts.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/keys.h"

namespace switchyard::bench {

// T tokens of width M (emb), each sent to K (topk) of E experts of width H (mlp).
struct MoeShape {
  std::string model;  // "" when the keys of a call made it
  std::int64_t tokens = 0, emb = 0, mlp = 0, experts = 0, topk = 0;
  std::int64_t rows() const { return tokens * topk; }
};

// The keys model, tokens, emb, mlp, experts, topk and skew. `models` is what `model` is without being given.
std::vector<Key> moe_shape_keys(const std::string& models);

// The shapes that the keys ask for: those of the named models; emb, mlp, experts, topk and tokens where given
// replace theirs (of deepseek-v2-lite alone when no model is named). `decode_tokens`: numbers of tokens in
// place of the models' own. Error(usage) when topk exceeds experts.
std::vector<MoeShape> moe_shapes(const Keys& keys);

// balanced: as even as can be. zipf: in proportion to 1/rank of the expert, in a random order of the experts.
// one_hot: one expert has all rows.
std::vector<std::string> skews(const Keys& keys);
// Rows of each expert.
std::vector<std::int64_t> rows_of_experts(const MoeShape& shape, const std::string& skew);

nlohmann::ordered_json shape_json(const MoeShape& shape, const std::string& skew);

}  // namespace switchyard::bench
