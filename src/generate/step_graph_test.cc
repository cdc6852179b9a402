// Steps that graphs of an emulated GPU run give the logits of calls without graphs.
#include <gtest/gtest.h>

#include <cstring>

#include "generate/generator_testing.h"

namespace switchyard {
namespace {

using namespace generator_test;

// Feeds the same tokens to a generator whose steps are graphs and to one whose steps are calls. Returns how
// many steps graphs ran.
int graphs_of(const Keys& keys, std::int64_t slots) {
  Keys on_gpu = keys;
  on_gpu["device"] = "cuda_emulated";
  const Config config = Config::from_map(on_gpu, {});
  const ModelConfig model = model_config(config);
  int ran = 0;
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters =
        Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
    Generator with(context, model, parameters, slots, 40), without(context, model, parameters, slots, 40);
    with.keep_logits_there();
    with.keep_loads();  // as a server does: they lie in the memory of the graph that made them
    std::int32_t token = 1;
    const auto feed = [&](const std::vector<std::size_t>& texts, std::size_t tokens) {
      std::vector<SlotTokens> fed;
      for (const std::size_t slot : texts) {
        fed.push_back({slot, {}});
        for (std::size_t i = 0; i < tokens; ++i) fed.back().tokens.push_back(token++ % kVocabulary);
      }
      const Tensor there = with.feed(fed), expected = without.feed(fed);
      Tensor found(Memory(), DType::f32, expected.shape());
      copy(there.view(), found.view());
      for (std::int64_t i = 0; i < found.size(); ++i)
        ASSERT_EQ(found.data<float>()[i], expected.data<float>()[i]) << "logit " << i << " after " << token;
      ran += with.ran_graph() ? 1 : 0;
    };
    feed({0, 1, 2}, 3);
    for (int step = 0; step < 5; ++step) feed({0, 1, 2}, 1);
    for (int step = 0; step < 4; ++step) feed({2, 0}, 1);
    feed({3}, 4);  // a text joins
    for (int step = 0; step < 4; ++step) feed({0, 1, 2, 3}, 1);
    with.clear(1), without.clear(1);  // a text leaves, another takes its slot
    feed({1}, 2);
    for (int step = 0; step < 4; ++step) feed({0, 1, 2, 3}, 1);
  });
  return ran;
}

TEST(StepGraphs, GiveTheLogitsOfCalls) {
  EXPECT_GE(graphs_of(grouped_queries(), 5), 10);
  Keys int8 = grouped_queries();
  int8["quantize_kvcache"] = true;
  EXPECT_GE(graphs_of(int8, 5), 10);
  EXPECT_GE(graphs_of(latent(), 5), 10);
}

// A graph and merged weights of latent attention belong to one version of the weights; the tokens of a slot,
// too, so that it has to be cleared.
TEST(StepGraphs, FollowTheWeights) {
  Keys keys = latent();
  keys["device"] = "cuda_emulated";
  const Config config = Config::from_map(keys, {});
  const ModelConfig model = model_config(config);
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters =
        Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
    Generator kept(context, model, parameters, 2, 40);
    kept.keep_logits_there();
    const auto expect_logits_of_new_generator = [&] {
      Generator fresh(context, model, parameters, 2, 40);
      fresh.keep_logits_there();
      for (std::int32_t token = 1; token < 6; ++token) {
        const SlotTokens fed{0, {token}};
        const Tensor there = kept.feed(std::span(&fed, 1)), expected = fresh.feed(std::span(&fed, 1));
        const Tensor found = to_host(there), wanted = to_host(expected);
        for (std::int64_t i = 0; i < found.size(); ++i)
          ASSERT_EQ(found.data<float>()[i], wanted.data<float>()[i]) << "logit " << i << " after " << token;
      }
      EXPECT_TRUE(kept.ran_graph());
    };
    expect_logits_of_new_generator();
    EXPECT_TRUE(kept.is_current(0));
    for (const Parameter& p : parameters.all()) {
      const Tensor& weight = p.array.tensor();
      const Tensor grown = to_host(weight).clone();
      for (std::int64_t i = 0; i < grown.size(); ++i) grown.data<float>()[i] *= 1.5f;
      copy(grown.view(), weight.view());
    }
    parameters.raise_version();
    EXPECT_FALSE(kept.is_current(0));
    EXPECT_TRUE(kept.is_current(1));  // it has no tokens
    EXPECT_EQ(kept.longest_prefix(0, 5), 0);
    kept.clear(0);
    EXPECT_TRUE(kept.is_current(0));
    expect_logits_of_new_generator();
  });
}

// Steps at which a window's tokens move are calls.
TEST(StepGraphs, LeaveOutStepsThatMoveTokens) {
  EXPECT_GE(graphs_of(windowed(), 5), 3);
  EXPECT_GE(graphs_of(chunked(), 5), 3);
}

}  // namespace
}  // namespace switchyard
