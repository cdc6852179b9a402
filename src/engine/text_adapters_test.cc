// Texts of several adapters in one call have the logits that each has alone.
#include "engine/text_adapters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/rng.h"
#include "core/testing.h"
#include "engine/changing_weights.h"
#include "engine/command_config.h"
#include "engine/session.h"
#include "generate/generator.h"

namespace switchyard {
namespace {

using Keys = std::map<std::string, nlohmann::json>;

constexpr std::int64_t kVocabulary = 40, kCapacity = 16;

// Latent attention, whose up-projection generation takes apart, and shared experts.
Keys latent_model() {
  return {{"vocab_size", kVocabulary},
          {"base_emb_dim", 24},
          {"base_mlp_dim", 20},
          {"base_moe_mlp_dim", 12},
          {"dtype", "float32"},
          {"weight_dtype", "float32"},
          {"num_experts", 4},
          {"num_experts_per_tok", 2},
          {"shared_experts", 1},
          {"init_weights_seed", 3},
          {"max_target_length", kCapacity},
          {"decoder_block", "deepseek"},
          {"base_num_decoder_layers", 3},
          {"first_num_dense_layers", 1},
          {"base_num_query_heads", 4},
          {"base_num_kv_heads", 4},
          {"attention_type", "mla"},
          {"q_lora_rank", 10},
          {"kv_lora_rank", 14},
          {"qk_nope_head_dim", 6},
          {"qk_rope_head_dim", 4},
          {"v_head_dim", 8},
          {"rope_type", "default"}};
}

// Experts with biases, whose gates are clamped: their products are not joined.
Keys biased_model() {
  return {{"vocab_size", kVocabulary},
          {"base_emb_dim", 24},
          {"base_mlp_dim", 12},
          {"dtype", "float32"},
          {"weight_dtype", "float32"},
          {"num_experts", 4},
          {"num_experts_per_tok", 2},
          {"init_weights_seed", 3},
          {"max_target_length", kCapacity},
          {"decoder_block", "gpt_oss"},
          {"sliding_window_size", 6},
          {"mlp_activations", {"sigmoid", "linear"}},
          {"mlp_activations_limit", 7.0},
          {"base_num_decoder_layers", 2},
          {"base_num_query_heads", 4},
          {"base_num_kv_heads", 2},
          {"head_dim", 6}};
}

// An adapter of every matrix of the layers whose name has `part`.
std::shared_ptr<const PeftAdapter> random_adapter(const ModelConfig& model, const std::string& part,
                                                  std::int64_t rank, bool one_a, std::uint32_t seed) {
  PeftAdapter made;
  for (const ParameterSpec& spec : parameter_specs(model)) {
    if (spec.matrix.inputs == 0 || layer_of(spec.name) < 0 || spec.name.find(part) == std::string::npos)
      continue;
    const bool in_pair = spec.name.ends_with("moe.wi_0") || spec.name.ends_with("moe.wi_1");
    made.adapter.weights[spec.name] = {rank, 1, one_a && in_pair};
  }
  ModelConfig adapted = model;
  adapted.adapter = std::make_shared<const Adapter>(made.adapter);
  for (const ParameterSpec& spec : parameter_specs(adapted)) {
    if (!spec.of_adapter) continue;
    const Tensor values(DType::f32, spec.shape);
    const RngKey key = rng_fold_in(rng_key(seed), static_cast<std::uint32_t>(made.tensors.size()));
    for (std::int64_t i = 0; i < values.size(); ++i)
      values.data<float>()[i] = 0.5f * rng_normal(key, static_cast<std::uint64_t>(i));
    made.tensors[spec.name] = values;
  }
  return std::make_shared<const PeftAdapter>(std::move(made));
}

AdapterPlaces three_adapters(const ModelConfig& model) {
  return {random_adapter(model, "", 3, false, 1), random_adapter(model, "moe.w", 5, true, 2),
          random_adapter(model, "attention", 2, true, 3)};
}

// The logits of two calls for prompts, and of one for a token more, [calls][prompts][vocabulary].
using Logits = std::vector<std::vector<std::vector<float>>>;

std::vector<std::int32_t> prompt(std::size_t text, std::size_t tokens) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < tokens; ++i)
    ids.push_back(static_cast<std::int32_t>((7 * text + 3 * i + 1) % kVocabulary));
  return ids;
}

// `numbers`: of the texts' adapters.
void make(Generator& generator, const std::vector<std::int32_t>& numbers, Logits& logits) {
  const auto call = [&](std::size_t tokens, std::size_t more) {
    std::vector<SlotTokens> fed;
    for (std::size_t text = 0; text < numbers.size(); ++text)
      fed.push_back({text, prompt(text + tokens, tokens + more * text)});
    const Tensor out = generator.feed(fed);
    if (!out.defined()) return;
    logits.emplace_back();
    for (std::size_t text = 0; text < numbers.size(); ++text) {
      const float* const row = out.data<float>() + static_cast<std::int64_t>(text) * kVocabulary;
      logits.back().emplace_back(row, row + kVocabulary);
    }
  };
  for (std::size_t text = 0; text < numbers.size(); ++text) {
    generator.clear(text);
    generator.use_adapter(text, numbers[text]);
  }
  call(4, 1);
  call(1, 0);
  call(1, 0);
}

// With `adapter`, `numbers` of texts, and parameters that `fill` makes.
Logits logits_of(const Config& config, ModelConfig model, std::shared_ptr<const Adapter> adapter,
                 const Parameters::FillBlock& fill, const std::vector<std::int32_t>& numbers) {
  model.adapter = std::move(adapter);
  Logits logits;
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters =
        Parameters::create_from_blocks(context, parameter_specs(model), model.init_seed, fill, nullptr);
    Generator generator(context, model, parameters, 4, kCapacity);
    Logits own;
    make(generator, numbers, own);
    if (context.comm->rank() == 0) logits = std::move(own);
  });
  return logits;
}

void expect_near(const Logits& got, const Logits& expected, std::size_t text, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t call = 0; call < got.size(); ++call) {
    float largest = 0;
    for (const float x : expected[call][text]) largest = std::max(largest, std::abs(x));
    for (std::size_t i = 0; i < got[call][text].size(); ++i)
      ASSERT_NEAR(got[call][text][i], expected[call][text][i], 2e-5f * largest)
          << what << ", text " << text << ", call " << call << ", token " << i;
  }
}

class TextAdapters : public testing::TestWithParam<std::string> {};

TEST_P(TextAdapters, AreEachAsAlone) {
  for (const Keys& keys : {latent_model(), biased_model()}) {
    std::istringstream layout(GetParam());
    const Config config =
        Config::from_map(keys, std::vector<std::string>(std::istream_iterator<std::string>(layout), {}));
    const ModelConfig model = model_config(config);
    const AdapterPlaces places = three_adapters(model);
    const std::vector<std::int32_t> numbers{2, 0, 3, 1}, none(4, 0);
    const auto together = adapters_together(places, DType::f32);
    const Logits mixed = logits_of(config, model, together, with_text_adapters(nullptr, places), numbers);
    const Logits base = logits_of(config, model, nullptr, nullptr, none);
    expect_near(mixed, base, 1, "without an adapter");
    for (std::size_t text = 0; text < numbers.size(); ++text) {
      if (numbers[text] == 0) continue;
      const auto alone = places[static_cast<std::size_t>(numbers[text]) - 1];
      const Logits expected = logits_of(
          config, model, std::make_shared<const Adapter>(alone->adapter),
          [&](const ParameterSpec& spec, const Box& block) {
            const auto found = alone->tensors.find(spec.name);
            return found == alone->tensors.end() ? Tensor()
                                                 : slice_block(found->second, block.start, block.shape);
          },
          none);
      expect_near(mixed, expected, text, "adapter " + std::to_string(numbers[text]));
      // Each adapter changes something, or the test would show nothing.
      EXPECT_NE(expected[0][text], base[0][text]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, TextAdapters,
                         testing::Values("", "ranks=2 ici_expert_parallelism=2",
                                         "ranks=2 ici_tensor_parallelism=2",
                                         "ranks=4 ici_expert_parallelism=2 ici_fsdp_parallelism=2",
                                         "ranks=2 ici_expert_parallelism=2 use_ring_of_experts=true",
                                         "num_moe_emb_chunks=2 ranks=2 ici_expert_parallelism=2"));

// Adapters come, go and change places while a text without one goes on.
TEST(TextAdapters, ComeAndGo) {
  const Config config = Config::from_map(latent_model(), {});
  const ModelConfig model = model_config(config);
  const AdapterPlaces all = three_adapters(model);
  const auto with = [&](AdapterPlaces places, const std::vector<std::int32_t>& numbers) {
    return logits_of(config, model, adapters_together(places, DType::f32),
                     with_text_adapters(nullptr, places), numbers);
  };
  const Logits first = with({all[0]}, {1, 0, 1, 0}), second = with({nullptr, all[0], all[2]}, {2, 0, 3, 0});
  expect_near(second, first, 0, "another place");
  expect_near(second, first, 1, "none");
  EXPECT_EQ(adapters_together({nullptr, nullptr}, DType::f32), nullptr);
}

// An engine, whose weights may change, keeps the factor apart; other uses have it in B.
TEST(TextAdapters, AdapterScaleCountsForEveryUse) {
  const std::string folder = std::string(kSourceFolder) + "/tests/golden/lora/mixtral-experts";
  const auto model = [&](const char* scale, ModelUse use) {
    const std::vector<std::string> settings{folder, "tokenizer_type=byte", "adapter=" + folder + "/adapter",
                                            std::string("adapter_scale=") + scale};
    return ModelOnMesh(config_to_run_fixed("serve", 1, settings), use);
  };
  for (const ModelUse use : {ModelUse::run, ModelUse::train_or_run}) {
    const ModelOnMesh one = model("1", use), half = model("0.5", use);
    for (const auto& [name, how] : one.adapter->adapter.weights) {
      const auto size_of_change = [&, weight = name](const ModelOnMesh& of) {
        return of.adapter->adapter.weights.at(weight).scale *
               of.adapter->tensors.at(lora_b_of(weight)).data<float>()[0];
      };
      ASSERT_NE(size_of_change(one), 0) << name;
      EXPECT_FLOAT_EQ(size_of_change(half), 0.5f * size_of_change(one)) << name;
    }
  }
}

}  // namespace
}  // namespace switchyard
