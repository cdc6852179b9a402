// Tests router and balance: every kind against its
// definition, gradients, and independence of the mesh.
#include "moe/router.h"

#include <numeric>

#include "moe/balance.h"
#include "ops/gradient_testing.h"

namespace switchyard {
namespace {

using namespace autograd_test;

MoeConfig make(RouterScore score, std::int64_t experts, std::int64_t slots) {
  MoeConfig config;
  config.experts = experts;
  config.slots = slots;
  config.score = score;
  config.softmax_over_selected = score == RouterScore::none;
  return config;
}

std::map<std::string, MoeConfig> kinds(std::int64_t experts, std::int64_t slots) {
  std::map<std::string, MoeConfig> all;
  all["mixtral"] = make(RouterScore::none, experts, slots);
  auto& qwen = all["qwen3"] = make(RouterScore::softmax, experts, slots);
  qwen.normalise = true;
  all["qwen3, not normalised"] = make(RouterScore::softmax, experts, slots);
  auto& deepseek2 = all["deepseek2"] = make(RouterScore::softmax, experts, slots);
  deepseek2.scaling = 16;
  auto& groups2 = all["deepseek2 with groups"] = deepseek2;
  groups2.groups = 4;
  groups2.kept_groups = 2;
  auto& deepseek3 = all["deepseek3"] = make(RouterScore::sigmoid, experts, slots);
  deepseek3.normalise = true;
  deepseek3.normalise_epsilon = 1e-20f;
  deepseek3.scaling = 2.5f;
  deepseek3.bias = true;
  auto& groups3 = all["deepseek3 with groups"] = deepseek3;
  groups3.groups = 4;
  groups3.kept_groups = 2;
  auto& kimi = all["kimi-k2 under compat"] = deepseek3;
  kimi.weights_include_bias = true;
  auto& random = all["random"] = deepseek3;
  random.random_routing = true;
  return all;
}

struct Choice {
  std::vector<std::int32_t> ids;
  std::vector<double> weights;
};

// Every kind of router, by full sorts and in double.
Choice naive(const MoeConfig& config, std::vector<double> logits, const std::vector<double>& bias) {
  std::vector<double> scores = logits;
  double sum = 0;
  for (double v : logits) sum += std::exp(v);
  for (double& s : scores) {
    if (config.score == RouterScore::softmax) s = std::exp(s) / sum;
    if (config.score == RouterScore::sigmoid) s = 1 / (1 + std::exp(-s));
  }
  std::vector<double> biased = scores;
  for (std::size_t e = 0; e < bias.size(); ++e) biased[e] += bias[e];
  auto best = [](const std::vector<double>& values, std::int64_t k) {
    std::vector<std::int32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
      return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
    });
    order.resize(static_cast<std::size_t>(k));
    return order;
  };
  std::vector<double> selectable = biased;
  if (config.groups > 1) {
    const std::size_t size = biased.size() / static_cast<std::size_t>(config.groups);
    std::vector<double> group_scores;
    for (std::size_t g = 0; g < static_cast<std::size_t>(config.groups); ++g) {
      std::vector<double> members(biased.begin() + static_cast<std::ptrdiff_t>(g * size),
                                  biased.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
      std::sort(members.rbegin(), members.rend());
      group_scores.push_back(members[0] + (config.score == RouterScore::sigmoid ? members[1] : 0));
    }
    const auto kept = best(group_scores, config.kept_groups);
    for (std::size_t e = 0; e < biased.size(); ++e) {
      if (std::count(kept.begin(), kept.end(), static_cast<std::int32_t>(e / size)) == 0)
        selectable[e] = -1e9;
    }
  }
  Choice choice{best(selectable, config.slots), {}};
  double total = 0;
  for (auto id : choice.ids) {
    const auto e = static_cast<std::size_t>(id);
    const double w = config.softmax_over_selected  ? std::exp(scores[e])
                     : config.weights_include_bias ? biased[e]
                                                   : scores[e];
    choice.weights.push_back(w);
    total += w;
  }
  for (double& w : choice.weights) {
    if (config.softmax_over_selected || config.normalise) w /= total;
    if (!config.softmax_over_selected) w *= config.scaling;
  }
  return choice;
}

TEST(Router, EqualsItsDefinition) {
  for (std::int64_t slots : {1, 3, 4}) {
    for (const auto& [name, config] : kinds(16, slots)) {
      if (config.random_routing) continue;
      for (std::uint32_t seed = 0; seed < 20; ++seed) {
        const Tensor logits = random_tensor({16}, 100 + seed), bias = random_tensor({16}, 200 + seed, 0.2f);
        const auto l = logits.span<float>();
        const auto b = config.bias ? bias.span<float>() : std::span<float>();
        std::vector<std::int32_t> ids(static_cast<std::size_t>(slots));
        std::vector<float> weights(ids.size());
        route_token(routing_rule(config), l, b, ids, weights);
        const Choice want = naive(config, {l.begin(), l.end()}, {b.begin(), b.end()});
        EXPECT_EQ(ids, want.ids) << name;
        for (std::size_t k = 0; k < ids.size(); ++k)
          EXPECT_NEAR(weights[k], want.weights[k], 1e-5 * std::abs(want.weights[k])) << name;
      }
    }
  }
}

TEST(Router, TiesGoToTheLowerId) {
  for (const auto& [name, config] : kinds(8, 4)) {
    if (config.random_routing) continue;
    const std::vector<float> logits(8, 0.25f), bias(config.bias ? 8 : 0, 0.0f);
    std::vector<std::int32_t> ids(4);
    std::vector<float> weights(4);
    route_token(routing_rule(config), logits, bias, ids, weights);
    EXPECT_EQ(ids, (std::vector<std::int32_t>{0, 1, 2, 3})) << name;
  }
  const MoeConfig all = make(RouterScore::softmax, 3, 3);
  std::vector<std::int32_t> ids(3);
  std::vector<float> weights(3);
  route_token(routing_rule(all), std::vector<float>{1, 2, 1}, {}, ids, weights);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 0, 2}));
}

TEST(Router, NotANumberStillGivesLegalIds) {
  for (const auto& [name, config] : kinds(8, 3)) {
    std::vector<float> logits(8, std::nanf(""));
    logits[5] = 1;
    std::vector<std::int32_t> ids(3, -7);
    std::vector<float> weights(3);
    route_token(routing_rule(config), logits, std::vector<float>(config.bias ? 8 : 0, 0.0f), ids, weights);
    for (auto id : ids) EXPECT_TRUE(id >= 0 && id < 8) << name;
  }
}

// Logits without near-ties, so that a small step flips no decision.
Tensor spaced_logits(std::int64_t batch, std::int64_t length, std::int64_t experts) {
  Tensor logits = random_tensor({batch, length, experts}, 51, 0.05f);
  for (std::int64_t t = 0; t < batch * length; ++t) {
    const auto order = rng_permutation(rng_key(static_cast<std::uint32_t>(t)), experts);
    for (std::int64_t e = 0; e < experts; ++e) {
      logits.data<float>()[t * experts + e] +=
          0.4f * static_cast<float>(order[static_cast<std::size_t>(e)]) - 2;
    }
  }
  return logits;
}

const Mesh kMesh({{"data", 2}, {"context", 3}, {"expert", 2}});
const Sharding kTokens{{{"data"}, {"context"}, {}}, {}};

TEST(Router, GradientsOfEveryKindOnEveryMesh) {
  for (const auto& [name, config] : kinds(8, 3)) {
    SCOPED_TRACE(name);
    GradientCase test{.function =
                          [&](Context& c, std::span<const Array> in) {
                            return route(c, config, in[0], in.size() > 1 ? in[1] : Array(), 5, 1).weights;
                          },
                      .inputs = {{spaced_logits(4, 3, 8), {kTokens, {{{"data", "expert"}, {}, {}}, {}}}}},
                      .meshes = {kMesh, kMesh},
                      .step = 2e-3};
    const bool bias_learns = config.weights_include_bias || config.random_routing;
    if (config.bias) test.inputs.push_back({random_tensor({8}, 52, 0.01f), {}, bias_learns});
    check_gradients(test);
  }
}

TEST(Router, RandomIdsDependOnStepLayerAndRowOnly) {
  MoeConfig config = kinds(8, 3)["random"];
  config.bias = false;
  const Tensor logits = random_tensor({4, 6, 8}, 1);
  auto draw = [&](const Mesh& mesh, const Sharding& s, std::int64_t step, std::int64_t layer) {
    Gathered gathered(mesh);
    on_mesh(mesh, [&](Context& c) {
      gathered.put(c, "ids", route(c, config, leaf(c, logits, s), Array(), step, layer).ids);
    });
    return gathered.get("ids");
  };
  const Tensor one = draw(Mesh(), replicated(3), 1, 2);
  EXPECT_TRUE(identical(draw(kMesh, kTokens, 1, 2), one));
  EXPECT_TRUE(identical(draw(kMesh, {{{"expert"}, {}, {}}, {}}, 1, 2), one));
  EXPECT_FALSE(identical(draw(Mesh(), replicated(3), 2, 2), one));
  EXPECT_FALSE(identical(draw(Mesh(), replicated(3), 1, 3), one));
  EXPECT_EQ(*std::min_element(one.data<std::int32_t>(), one.data<std::int32_t>() + one.size()), 0);
  EXPECT_EQ(*std::max_element(one.data<std::int32_t>(), one.data<std::int32_t>() + one.size()), 7);
}

struct NamedBalance {
  const char* name;
  BalanceRule rule;
};

const NamedBalance kBalanceRules[] = {
    {"ours", {}},
    {"maxtext", {.softmax_of_scores = true, .count_padding = true, .by_parts = true}},
    {"maxtext, dense", {.softmax_of_scores = true, .biased = true, .count_padding = true}},
    {"maxtext-2026-08",
     {.divide_by_slots = false, .softmax_of_scores = true, .biased = true, .count_padding = true}},
    {"megatron", {.of_best_scores = true}},
};

TEST(Balance, GradientsOfEveryKindOnEveryMesh) {
  const Tensor ids = random_integers({4, 3, 3}, 53, 0, 8);
  const std::int32_t segment_ids[] = {1, 1, 0, 1, 2, 2, 0, 0, 0, 1, 0, 1};
  for (const auto& [rule_name, rule] : kBalanceRules) {
    for (const auto& [name, config] : kinds(8, 3)) {
      SCOPED_TRACE(name + ", " + rule_name);
      const MoeExecution execution{.balance_weight = 0.5, .balance = rule};
      const Sharding tokens2{{{"data"}, {"context"}}, {}};
      GradientCase test{.function =
                            [&](Context& c, std::span<const Array> in) {
                              return balance_loss(c, config, execution, in[0],
                                                  in.size() > 3 ? in[3] : Array(), {in[1], Array()}, in[2]);
                            },
                        .inputs = {{spaced_logits(4, 3, 8), {kTokens}},
                                   {ids, {kTokens}},
                                   {Tensor::of<std::int32_t>({4, 3}, segment_ids), {tokens2}}},
                        .meshes = {kMesh}};
      if (config.bias) test.inputs.push_back({random_tensor({8}, 52), {}, rule.biased});
      check_gradients(test);
    }
  }
}

TEST(Balance, EqualsItsDefinition) {
  const MoeConfig config = make(RouterScore::none, 4, 2);
  const Tensor logits = random_tensor({2, 5, 4}, 1), ids = random_integers({2, 5, 2}, 2, 0, 4);
  const std::int32_t segment_ids[] = {1, 1, 0, 1, 1, 0, 1, 1, 1, 0};
  for (const auto& [name, rule] : kBalanceRules) {
    if (rule.of_best_scores) continue;  // below
    SCOPED_TRACE(name);
    const MoeExecution execution{.balance_weight = 0.3, .balance = rule};
    double loss = 0;
    for (std::int64_t b = 0; b < 2; ++b) {
      double density[4] = {}, prob[4] = {}, tokens = 0;
      for (std::int64_t s = 0; s < 5; ++s) {
        if (!rule.count_padding && segment_ids[b * 5 + s] == 0) continue;
        ++tokens;
        double sum = 0;
        const float* l = logits.data<float>() + (b * 5 + s) * 4;
        for (int e = 0; e < 4; ++e) sum += std::exp(static_cast<double>(l[e]));
        for (int e = 0; e < 4; ++e) prob[e] += std::exp(static_cast<double>(l[e])) / sum;
        for (int k = 0; k < 2; ++k) ++density[ids.data<std::int32_t>()[(b * 5 + s) * 2 + k]];
      }
      const double slots = rule.divide_by_slots ? 2 : 1;
      for (int e = 0; e < 4; ++e) loss += density[e] / slots / tokens * prob[e] / tokens / (2 * 4) * 16 * 0.3;
    }
    on_mesh(Mesh(), [&](Context& c) {
      const Array got = balance_loss(c, config, execution, leaf(c, logits, replicated(3)), Array(),
                                     {leaf(c, ids, replicated(3)), Array()},
                                     leaf(c, Tensor::of<std::int32_t>({2, 5}, segment_ids), replicated(2)));
      EXPECT_NEAR(got.tensor().data<float>()[0], loss, 1e-6);
    });
  }
}

double balance_of(const MoeConfig& config, const MoeExecution& execution, const Tensor& logits,
                  const Tensor& bias, const Tensor& ids) {
  double loss = 0;
  on_mesh(Mesh(), [&](Context& c) {
    const Tensor segments = random_integers({logits.dim(0), logits.dim(1)}, 1, 1, 2);
    loss = static_cast<double>(balance_loss(c, config, execution, leaf(c, logits, replicated(3)),
                                            bias.defined() ? leaf(c, bias, replicated(1)) : Array(),
                                            {leaf(c, ids, replicated(3)), Array()},
                                            leaf(c, segments, replicated(2)))
                                   .tensor()
                                   .data<float>()[0]);
  });
  return loss;
}

// Megatron-LM's asks for the K best scores, whatever was chosen with bias and groups.
TEST(Balance, OfBestScoresIsThatOfAnUnbiasedChoice) {
  MoeConfig config = make(RouterScore::sigmoid, 4, 2);
  config.bias = true;
  config.groups = 2, config.kept_groups = 1;
  const Tensor logits = random_tensor({2, 6, 4}, 1), bias = random_tensor({4}, 2),
               chosen = random_integers({2, 6, 2}, 3, 0, 4);
  Tensor best(DType::i32, {2, 6, 2});
  for (std::int64_t t = 0; t < 12; ++t) {
    const float* const l = logits.data<float>() + t * 4;
    std::int32_t order[] = {0, 1, 2, 3};
    std::sort(order, order + 4, [&](std::int32_t a, std::int32_t b) { return l[a] > l[b]; });
    std::copy_n(order, 2, best.data<std::int32_t>() + t * 2);
  }
  const MoeExecution ours{.balance_weight = 0.3},
      megatron{.balance_weight = 0.3, .balance = {.of_best_scores = true}};
  EXPECT_EQ(balance_of(config, megatron, logits, bias, chosen), balance_of(config, ours, logits, bias, best));
  EXPECT_NE(balance_of(config, megatron, logits, bias, chosen),
            balance_of(config, ours, logits, bias, chosen));
}

// By parts: the mean over each part of the sequence as one of its own.
TEST(Balance, ByPartsIsTheMeanOverTheParts) {
  const MoeConfig config = make(RouterScore::none, 4, 2);
  const Tensor logits = random_tensor({2, 6, 4}, 1), ids = random_integers({2, 6, 2}, 3, 0, 4);
  const MoeExecution whole{.balance_weight = 0.3},
      parts{.token_chunks = 3, .balance_weight = 0.3, .balance = {.by_parts = true}};
  EXPECT_NEAR(balance_of(config, parts, logits, {}, ids),
              balance_of(config, whole, logits.reshaped({6, 2, 4}), {}, ids.reshaped({6, 2, 2})), 1e-7);
  EXPECT_GT(std::abs(balance_of(config, parts, logits, {}, ids) - balance_of(config, whole, logits, {}, ids)),
            1e-4);
}

TEST(Balance, BiasMovesTowardsTheMean) {
  EXPECT_EQ(bias_increment(std::vector<double>{4, 0, 2, 2}, 0.5), (std::vector<float>{-0.5f, 0.5f, 0, 0}));
}

}  // namespace
}  // namespace switchyard
