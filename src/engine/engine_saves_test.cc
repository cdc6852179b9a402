// Tests what the engine writes, and how it is read again.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "engine/engine_testing.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// A folder of its own, with weights that a step has moved.
class EngineSaves : public testing::Test {
 protected:
  EngineSaves() {
    std::string name = (fs::path(testing::TempDir()) / "engine_saves.XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~EngineSaves() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  fs::path folder_;
  const TrainBatch batch_{batch_of(4, 8)};
};

Arguments with(Arguments keys, const Arguments& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

TEST_F(EngineSaves, TrainingGoesOnOnAnyMesh) {
  const Arguments meshes[] = {{}, kMesh};
  for (std::size_t from = 0; from < 2; ++from) {
    Engine engine = open(meshes[from]);
    for (int step = 0; step < 2; ++step) engine.train_step(batch_);
    const std::string saved = at(from == 0 ? "of one" : "of four");
    EXPECT_TRUE(engine.save(saved).empty());
    Engine reopened = Engine::open(Settings::parse({saved, "dtype=float32"}));
    EXPECT_EQ(reopened.read_parameter("layers.1.moe.wo"), engine.read_parameter("layers.1.moe.wo"));
    const double third = engine.train_step(batch_).loss, fourth = engine.train_step(batch_).loss;
    for (const Arguments& mesh : meshes) {
      Engine resumed = open(with(mesh, {"load_full_state_path=" + saved}));
      const TrainStep again = resumed.train_step(batch_);
      EXPECT_EQ(again.step, 2);
      EXPECT_NEAR(again.loss, third, 1e-5);
      EXPECT_NEAR(resumed.train_step(batch_).loss, fourth, 1e-4);
    }
  }
}

TEST_F(EngineSaves, WithoutAStepThereAreWeightsAlone) {
  Engine engine = open(kMesh);
  engine.save(at("weights"));
  Engine reopened = open({"load_parameters_path=" + at("weights"), "init_weights_seed=4"});
  for (const ParameterInfo& p : engine.parameters())
    EXPECT_EQ(reopened.read_parameter(p.name), engine.read_parameter(p.name)) << p.name;
  expect_error([&] { open({"load_full_state_path=" + at("weights")}); }, at("weights"));
}

TEST_F(EngineSaves, ExportsWhatOpensWithTheSameLogits) {
  const std::string tokenizer = std::string(kSourceFolder) + "/tests/golden/tokenizer/sp_bpe.model";
  for (const Arguments& mesh : {Arguments(), kMesh}) {
    Engine engine = open(with(mesh, {"tokenizer_type=sentencepiece", "tokenizer_path=" + tokenizer}));
    engine.train_step(batch_);
    const std::string exported = at(mesh.empty() ? "of one" : "of four");
    engine.export_weights(exported);
    EXPECT_FALSE(fs::exists(at(".weights-of-" + fs::path(exported).filename().string())));
    Engine reopened = Engine::open(Settings::parse(with({exported, "max_target_length=16"}, mesh)));
    EXPECT_EQ(reopened.forward(batch_.inputs).values, engine.forward(batch_.inputs).values);
    EXPECT_EQ(reopened.encode("a yard"), engine.encode("a yard"));
  }
  open().export_weights(at("narrow"), "bfloat16");
  EXPECT_LT(fs::file_size(at("narrow/model.safetensors")),
            fs::file_size(at("of one/model.safetensors")) * 2 / 3);
}

TEST_F(EngineSaves, RefusesWhatItCannotWrite) {
  Engine engine = open();
  fs::create_directory(at("full"));
  std::ofstream(at("full/file")) << "mine";
  expect_error([&] { engine.save(at("full")); }, "save: " + at("full") + " exists already");
  expect_error([&] { engine.export_weights(at("full")); }, "export_weights: " + at("full") + " exists");
  expect_error([&] { engine.save(at("none/there")); }, "there is no folder " + at("none"));
  expect_error([&] { engine.export_weights(at("x"), "int4"); }, "dtype=int4");
  fs::create_directory(at("empty"));
  engine.save(at("empty"));
  EXPECT_TRUE(fs::exists(at("empty/manifest.json")));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2);
  Engine packed =
      Engine::open(Settings::parse({std::string(kSourceFolder) + "/tests/golden/gguf/qwen3moe/Q4_0.gguf"}));
  expect_error([&] { packed.save(at("packed")); }, "save: the weights are packed");
  expect_error([&] { packed.export_weights(at("packed")); }, "export_weights: the weights are packed");
}

// Tokens one by one give whole characters at once, and together what decode() makes of all.
TEST(EngineTextDecoder, GivesWholeCharacters) {
  const std::string text =
      "na\xc3\xafve \xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e "
      "\xd8\xb9\xd8\xb1\xd8\xa8\xd9\x8a "
      "\xe0\xa4\xb9\xe0\xa4\xbf\xe0\xa4\x82\xe0\xa4\xa6\xe0\xa5\x80 "
      "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80\xf0\x9f\x87\xaf\xf0\x9f\x87\xb5 x";
  const std::string files = std::string(kSourceFolder) + "/tests/golden/tokenizer/";
  int split = 0;
  const std::pair<std::string, std::string> tokenizers[] = {{"byte", ""},
                                                            {"huggingface", "llama3.json"},
                                                            {"huggingface", "qwen.json"},
                                                            {"huggingface", "deepseek.json"},
                                                            {"huggingface", "llama2.json"},
                                                            {"sentencepiece", "sp_bpe.model"},
                                                            {"tiktoken", "kimi"}};
  for (const auto& [type, name] : tokenizers) {
    Arguments keys{"tokenizer_type=" + type, "vocab_size=259"};
    if (!name.empty()) keys.push_back("tokenizer_path=" + files + name);
    Engine engine = open(keys);
    const std::vector<std::int32_t> tokens = engine.encode(text);
    TextDecoder decoder = engine.text_decoder();
    std::string all;
    for (const std::int32_t token : tokens) {
      const std::string more = decoder.add(token);
      split += more.empty();
      EXPECT_EQ(more.find("\xef\xbf\xbd"), std::string::npos) << name << ": " << more;
      EXPECT_TRUE(more.empty() || (static_cast<unsigned char>(more[0]) & 0xc0) != 0x80) << name;
      all += more;
    }
    EXPECT_EQ(all + decoder.rest(), engine.decode(tokens)) << name;
  }
  EXPECT_GT(split, 20) << "no character was split, so the test shows nothing";
}

TEST(EngineTextDecoder, KeepsBytesThatAreNoCharacter) {
  Engine engine = open({"tokenizer_type=byte", "vocab_size=259"});
  TextDecoder decoder = engine.text_decoder(engine.encode("before \xc3"));
  std::string all;
  for (const unsigned char byte : std::string("\xa9 b\xff\xe6\x97 c\xf0\x9f\x98")) all += decoder.add(byte);
  EXPECT_EQ(all, "\xc3\xa9 b\xff\xe6\x97 c");
  EXPECT_EQ(decoder.rest(), "\xf0\x9f\x98");
  expect_error([] { open().text_decoder(); }, "text_decoder: tokenizer_path");
}

}  // namespace
}  // namespace switchyard
