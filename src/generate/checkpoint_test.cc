// The state that a slot had after a prompt, kept for texts that begin like it: layers that cannot be cut go
// on from there, and give the logits that they give where all is read again.
#include <gtest/gtest.h>

#include <functional>

#include "generate/generator_testing.h"

namespace switchyard {
namespace {

using namespace generator_test;

// A conversation in slots of a generator: the turns share a text, and the answers between are other tokens.
class Turns {
 public:
  Turns(Generator& generator, const std::vector<std::int32_t>& text, const std::vector<float>& want)
      : generator_(generator), text_(text), want_(want) {}
  // Reads the text from where the slot is to `end`, and expects its logits.
  void read(std::size_t slot, std::int64_t end) {
    const SlotTokens fed{slot, {text_.begin() + generator_.length(slot), text_.begin() + end}};
    const Tensor got = generator_.feed(std::span(&fed, 1));
    for (std::size_t v = 0; got.defined() && v < kVocabulary; ++v) {
      ASSERT_NEAR(got.span<float>()[v], want_[static_cast<std::size_t>(end - 1) * kVocabulary + v], 3e-5)
          << "slot " << slot << " after " << end;
    }
  }
  void answer(std::size_t slot, int tokens) {
    for (int i = 0; i < tokens; ++i) {
      const SlotTokens fed{slot, {7 + i}};
      generator_.feed(std::span(&fed, 1));
    }
  }

 private:
  Generator& generator_;
  const std::vector<std::int32_t>& text_;
  const std::vector<float>& want_;
};

void with_checkpoints(const Keys& keys, const std::string& layout, std::int64_t checkpoints,
                      const std::function<void(Generator&)>& body) {
  const Config config = Config::from_map(keys, settings_of(layout));
  const ModelConfig model = model_config(config);
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters = Parameters::create(
        context, stage_specs(parameter_specs(model), context.stage, model), model.init_seed, {}, nullptr);
    Generator generator(context, model, parameters, 2, 40, true, checkpoints);
    body(generator);
  });
}

std::vector<Keys> models_that_are_not_cut() {
  Keys turns = windowed();
  turns["decoder_block"] = "gpt_oss";
  turns.insert({{"mlp_activations", {"sigmoid", "linear"}}, {"mlp_activations_limit", 7.0}});
  return {delta_nets(), windowed(), turns, chunked()};
}

TEST(Checkpoints, TheNextTurnGoesOnAfterThePrompt) {
  const Rows texts = random_rows({36});
  for (const Keys& keys : models_that_are_not_cut()) {
    const auto want = every_logits_at_once(keys, texts);
    for (const char* layout : {"", "ranks=2 ici_tensor_parallelism=2", "ranks=2 ici_pipeline_parallelism=2",
                               "ranks=2 ici_expert_parallelism=2"}) {
      SCOPED_TRACE(keys.at("decoder_block").get<std::string>() + " " + layout);
      with_checkpoints(keys, layout, 1, [&](Generator& generator) {
        Turns turns(generator, texts[0], want[0]);
        turns.read(0, 9);
        turns.read(0, 14);
        EXPECT_FALSE(generator.can_copy_prefix(0, 11));
        generator.keep_checkpoint(0);
        turns.answer(0, 13);
        EXPECT_TRUE(generator.can_copy_prefix(0, 14));
        EXPECT_EQ(generator.longest_prefix(0, 20), 14);
        EXPECT_EQ(generator.longest_prefix(0, 13), 0);
        generator.copy_prefix(0, 0, 14);  // in place
        turns.read(0, 15);
        turns.read(0, 22);
        turns.answer(0, 9);
        if (generator.slot_groups() == 1) {  // in another slot, which has the checkpoint then, too
          generator.copy_prefix(1, 0, 14);
          turns.read(1, 30);
          turns.answer(1, 2);
          generator.copy_prefix(1, 1, 14);
          turns.read(1, 19);
        }
        generator.copy_prefix(0, 0, 14);
        turns.read(0, 22);
        generator.keep_checkpoint(0);  // in place of the first
        turns.answer(0, 9);
        EXPECT_EQ(generator.longest_prefix(0, 21), 0);
        generator.copy_prefix(0, 0, 22);
        for (std::int64_t end = 23; end <= 36; ++end) turns.read(0, end);
        generator.clear(0);
        EXPECT_EQ(generator.longest_prefix(0, 30), 0);
      });
    }
  }
}

TEST(Checkpoints, AsManyAsThereIsMemoryFor) {
  const Rows texts = random_rows({36});
  const auto want = every_logits_at_once(delta_nets(), texts);
  with_checkpoints(delta_nets(), "", 2, [&](Generator& generator) {
    Turns turns(generator, texts[0], want[0]);
    for (const std::int64_t end : {6, 11, 17}) {
      turns.read(0, end);
      generator.keep_checkpoint(0);
      generator.keep_checkpoint(0);
    }
    turns.answer(0, 3);
    EXPECT_EQ(generator.longest_prefix(0, 10), 0);
    EXPECT_EQ(generator.longest_prefix(0, 16), 11);
    generator.copy_prefix(1, 0, 17);
    generator.copy_prefix(0, 0, 11);
    EXPECT_EQ(generator.longest_prefix(0, 30), 11);
    turns.read(0, 19);
    turns.read(1, 21);
    generator.copy_prefix(1, 1, 11);
    turns.read(1, 15);
  });
  with_checkpoints(delta_nets(), "", 0, [&](Generator& generator) {
    Turns turns(generator, texts[0], want[0]);
    turns.read(0, 6);
    generator.keep_checkpoint(0);
    turns.read(0, 8);
    EXPECT_EQ(generator.longest_prefix(0, 7), 0);
  });
}

TEST(Checkpoints, TellWhichModelsNeedThem) {
  const auto prefixes = [](const Keys& keys, bool evicts) {
    return prefixes_of(model_config(Config::from_map(keys, {})), evicts);
  };
  EXPECT_EQ(prefixes(grouped_queries(), true), Prefixes::any);
  EXPECT_EQ(prefixes(windowed(), false), Prefixes::any);
  EXPECT_EQ(prefixes(windowed(), true), Prefixes::long_ones);
  EXPECT_EQ(prefixes(chunked(), true), Prefixes::long_ones);
  EXPECT_EQ(prefixes(delta_nets(), false), Prefixes::whole);
}

}  // namespace
}  // namespace switchyard
