// Shapes of MoE layers, and the load of each expert.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/keys.h"

namespace switchyard::bench {

// T tokens of width M (emb), each assigned to K (topk) of E experts of width H (mlp).
struct MoeShape {
  std::string model;  // "" when a call's keys gave the shape
  std::int64_t tokens = 0, emb = 0, mlp = 0, experts = 0, topk = 0;
  std::int64_t rows() const { return tokens * topk; }
};

// The keys model, tokens, emb, mlp, experts, topk and skew. `models` is the default of `model`.
std::vector<Key> moe_shape_keys(const std::string& models);

// The shapes that the keys ask for: those of the named models, with emb, mlp, experts, topk and tokens
// replaced where given (in deepseek-v2-lite when no model is named). `decode_tokens`: numbers of tokens that
// replace the models' own. Error(usage) when topk exceeds experts.
std::vector<MoeShape> moe_shapes(const Keys& keys);

// The skews that the keys ask for. balanced: as even as possible. zipf: in proportion to 1/rank of the
// expert, in a random order of the experts. one_hot: one expert has all rows.
std::vector<std::string> skews(const Keys& keys);
// Number of rows for each expert.
std::vector<std::int64_t> rows_of_experts(const MoeShape& shape, const std::string& skew);

nlohmann::ordered_json shape_json(const MoeShape& shape, const std::string& skew);

}  // namespace switchyard::bench
