// Tokens that an emulated GPU picks are those that the host picks from the same logits.
#include <gtest/gtest.h>

#include "generate/generator_testing.h"
#include "texts/generate.h"

namespace switchyard {
namespace {

using namespace generator_test;

constexpr std::size_t kNewTokens = 8;

std::vector<SamplingConfig> strategies(bool all_of_them) {
  using enum SamplingStrategy;
  std::vector<SamplingConfig> all{
      {greedy}, {weighted, 0.9}, {nucleus, 1.2, 0.8}, {topk, 0.8, -1, 12}, {composite, 1, 0.9, 20}};
  all.push_back({weighted, 1, -1, 0, 0.2});
  all.push_back({nucleus, 1, 0.95, 0, 0, 1.3, 0.2, 0.4, {{3, 2.5}, {7, -100}}});
  if (!all_of_them) all.erase(all.begin(), all.end() - 1);
  return all;
}

std::int64_t reads_of_logits(const Context& context) {
  const auto& counts = context.host_reads.counts();
  const auto found = counts.find("logits");
  return found == counts.end() ? 0 : found->second;
}

// `on_gpu`: tokens are picked where the logits are.
Generated made_on(Context& context, const ModelConfig& model, const Parameters& parameters, bool on_gpu,
                  const SamplingConfig& sampling) {
  const std::vector<std::vector<std::int32_t>> prompts = random_rows({2, 7, 1});
  Generator generator(context, model, parameters, std::ssize(prompts) + 1, 24);
  if (on_gpu) generator.keep_logits_there();
  const GenerateOptions options{.sampling = sampling,
                                .most_tokens = kNewTokens,
                                .log_probs = true,
                                .vocab = kVocabulary - 3,
                                .drafts = model.predictions > 0 ? 1 : 0,
                                .seed = 5};
  return generate(generator, prompts, options, [](std::size_t, std::int32_t) {});
}

void expect_same_texts(Keys keys, const std::string& layout) {
  SCOPED_TRACE(layout);
  keys["device"] = "cuda_emulated";
  const Config config = Config::from_map(keys, settings_of(layout));
  const ModelConfig model = model_config(config);
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters = Parameters::create(
        context, stage_specs(parameter_specs(model), context.stage, model), model.init_seed, {}, nullptr);
    for (const SamplingConfig& sampling : strategies(layout.empty() && model.predictions == 0)) {
      const std::int64_t before = reads_of_logits(context);
      const Generated there = made_on(context, model, parameters, true, sampling);
      if (context.stage.count == 1) {
        EXPECT_EQ(reads_of_logits(context), before);
      }
      const Generated here = made_on(context, model, parameters, false, sampling);
      for (std::size_t r = 0; r < here.texts.size(); ++r) {
        EXPECT_EQ(there.texts[r].tokens.size(), kNewTokens);
        EXPECT_EQ(there.texts[r].tokens, here.texts[r].tokens) << static_cast<int>(sampling.strategy);
        EXPECT_EQ(there.texts[r].log_probs, here.texts[r].log_probs);
      }
      EXPECT_EQ(there.accepted, here.accepted);
    }
  });
}

TEST(GpuSampling, GivesTheTextsOfTheHost) {
  for (const char* layout : {"", "ranks=2 ici_tensor_parallelism=2", "ranks=2 ici_data_parallelism=2",
                             "ranks=2 ici_pipeline_parallelism=2"})
    expect_same_texts(grouped_queries(), layout);
  Keys drafting = grouped_queries();
  drafting["mtp_num_layers"] = 1;
  expect_same_texts(drafting, "");
}

}  // namespace
}  // namespace switchyard
