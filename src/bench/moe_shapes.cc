#include "bench/moe_shapes.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/rng.h"

namespace switchyard::bench {
namespace {

// Layers of published models, with enough tokens that every expert has work for the caches. The last one is
// the 7 B entry of SonicMoE's table (Guo et al. 2025) with a third of its tokens.
const std::vector<MoeShape> kModels{{"deepseek-v2-lite", 8192, 2048, 1408, 64, 6},
                                    {"qwen3-30b-a3b", 8192, 2048, 768, 128, 8},
                                    {"mixtral-8x7b", 2048, 4096, 14336, 8, 2},
                                    {"sonicmoe-7b", 8192, 1536, 256, 128, 8}};
const std::vector<std::string> kSkews{"balanced", "zipf", "one_hot"};

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const MoeShape& shape : kModels) names.push_back(shape.model);
  return names;
}

std::vector<std::int64_t> zipf_rows(std::int64_t rows, std::int64_t experts) {
  double total = 0;
  for (std::int64_t i = 0; i < experts; ++i) total += 1.0 / static_cast<double>(i + 1);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(experts));
  const auto order = rng_permutation(rng_key(11), experts);
  std::int64_t left = rows;
  for (std::int64_t i = experts - 1; i >= 0; --i) {
    const double share = static_cast<double>(rows) / static_cast<double>(i + 1) / total;
    const auto here = i == 0 ? left : std::min(left, static_cast<std::int64_t>(std::llround(share)));
    sizes[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = here;
    left -= here;
  }
  return sizes;
}

}  // namespace

std::vector<Key> moe_shape_keys(const std::string& models) {
  return {{"model", models, "layers of deepseek-v2-lite, qwen3-30b-a3b, mixtral-8x7b, sonicmoe-7b; or all"},
          {"tokens", "", "tokens T"},
          {"emb", "", "model width M"},
          {"mlp", "", "expert width H"},
          {"experts", "", "experts E"},
          {"topk", "", "experts a token K"},
          {"skew", "all", "balanced, zipf, one_hot; or all"}};
}

std::vector<MoeShape> moe_shapes(const Keys& keys) {
  const bool own = keys.any_given({"emb", "mlp", "experts", "topk"});
  std::vector<MoeShape> shapes;
  const auto names = own && !keys.given("model") ? std::vector<std::string>{kModels[0].model}
                                                 : keys.words("model", model_names());
  for (const auto& name : names) {
    MoeShape shape =
        *std::find_if(kModels.begin(), kModels.end(), [&](const MoeShape& m) { return m.model == name; });
    if (own) shape.model = "";
    if (keys.given("emb")) shape.emb = keys.integer("emb");
    if (keys.given("mlp")) shape.mlp = keys.integer("mlp");
    if (keys.given("experts")) shape.experts = keys.integer("experts");
    if (keys.given("topk")) shape.topk = keys.integer("topk");
    if (shape.topk > shape.experts)
      fail_usage("[bench] {} topk={}: expected at most the {} experts", keys.case_name(), shape.topk,
                 shape.experts);
    const auto tokens =
        keys.given("tokens") ? keys.integers("tokens") : std::vector<std::int64_t>{shape.tokens};
    for (const std::int64_t count : tokens) {
      shape.tokens = count;
      shapes.push_back(shape);
    }
  }
  return shapes;
}

std::vector<std::string> skews(const Keys& keys) {
  return keys.words("skew", kSkews);
}

std::vector<std::int64_t> rows_of_experts(const MoeShape& shape, const std::string& skew) {
  const std::int64_t rows = shape.rows();
  if (skew == "zipf") return zipf_rows(rows, shape.experts);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(shape.experts));
  if (skew == "one_hot") {
    sizes[sizes.size() / 2] = rows;
    return sizes;
  }
  for (std::int64_t i = 0; i < shape.experts; ++i)
    sizes[static_cast<std::size_t>(i)] = rows / shape.experts + (i < rows % shape.experts ? 1 : 0);
  return sizes;
}

nlohmann::ordered_json shape_json(const MoeShape& shape, const std::string& skew) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!shape.model.empty()) json["model"] = shape.model;
  json["tokens"] = shape.tokens;
  json["emb"] = shape.emb;
  json["mlp"] = shape.mlp;
  json["experts"] = shape.experts;
  json["topk"] = shape.topk;
  json["skew"] = skew;
  return json;
}

}  // namespace switchyard::bench
