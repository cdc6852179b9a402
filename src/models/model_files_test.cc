// Tests every model file of the reference: it exists here with the same values, or is refused with a reason.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "config/config_file.h"
#include "core/error.h"
#include "core/json_file.h"
#include "core/testing.h"
#include "models/model_config.h"
#include "models/parameters.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// What each of them holds, by its name.
nlohmann::json reference_models() {
  return read_json_file(std::string(kSourceFolder) + "/tests/golden/maxtext025/models.json");
}

std::string refusal(const std::string& argument) {
  try {
    model_config(Config::from_args(std::vector<std::string>{argument}));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return {};
}

class ReferenceModelFiles : public testing::Test {
 protected:
  ReferenceModelFiles() : folder_(fs::temp_directory_path() / ("models_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~ReferenceModelFiles() override { fs::remove_all(folder_); }

  // JSON is YAML too.
  std::string written(const std::string& name, const nlohmann::json& keys) {
    const fs::path path = folder_ / (name + ".yml");
    std::ofstream(path) << keys;
    return path.string();
  }

 private:
  fs::path folder_;
};

TEST_F(ReferenceModelFiles, EachPlansOrIsRefusedWithItsReason) {
  const nlohmann::json models = reference_models();
  EXPECT_EQ(models.size(), 82u);
  const std::vector<std::string> names = config_names("models");
  const std::set<std::string> here(names.begin(), names.end());
  int planned = 0;
  for (const auto& [name, keys] : models.items()) {
    SCOPED_TRACE(name);
    const std::string problem = refusal("model_name=" + name);
    if (here.contains(name) && name != "deepseek-custom") {
      EXPECT_EQ(problem, "");
      EXPECT_FALSE(
          parameter_specs(model_config(Config::from_args(std::vector{"model_name=" + name}))).empty());
      ++planned;
      continue;
    }
    EXPECT_NE(problem.find("not built yet"), std::string::npos) << problem;
    if (here.contains(name)) continue;
    EXPECT_NE(problem.find("[config] model_name=" + name + ": "), std::string::npos) << problem;
    EXPECT_NE(refusal("models/" + name + ".yml").find("not built yet"), std::string::npos);
  }
  EXPECT_EQ(planned, 56);
}

// The file of the reference as CONFIG.yml is the model of our file of that name.
TEST_F(ReferenceModelFiles, AsTheyStandAreTheModelsOfOurs) {
  // Scout as published has other numbers than the reference's constants of Llama 3.1.
  const std::map<std::string, std::string> differs = {{"llama4-17b-16e", "rope_factor"}};
  const std::vector<std::string> names = config_names("models");
  const nlohmann::json models = reference_models();
  for (const auto& [name, keys] : models.items()) {
    if (!std::binary_search(names.begin(), names.end(), name) || name == "deepseek-custom") continue;
    SCOPED_TRACE(name);
    const std::string path = written(name, keys);
    ASSERT_EQ(refusal(path), "");
    const ModelConfig theirs = model_config(Config::from_args(std::vector{path})),
                      ours = model_config(Config::from_args(std::vector{"model_name=" + name}));
    const auto known = differs.find(name);
    EXPECT_EQ(differing_key(theirs, ours), known == differs.end() ? "" : known->second);
  }
}

TEST_F(ReferenceModelFiles, AreTheTextDecoderOfModelsThatSeeAndHear) {
  const auto notices = [](const std::string& argument) {
    const Config config = Config::from_args(std::vector{argument});
    std::string all;
    for (const std::string& line : config.notices()) all += line + "\n";
    return all;
  };
  for (const std::string name :
       {"qwen3-vl-2b", "qwen3-vl-30b-a3b", "qwen3-omni-30b-a3b", "qwen3.5-35b-a3b"}) {
    SCOPED_TRACE(name);
    const std::string said = notices("model_name=" + name);
    EXPECT_NE(said.find("models/" + name + ".yml: the text decoder only"), std::string::npos) << said;
    EXPECT_EQ(said.find("_for_vit"), std::string::npos) << said;
    const std::string mine = written("mine", reference_models().at(name));
    EXPECT_NE(notices(mine).find(mine + ": the text decoder only"), std::string::npos);
  }
  EXPECT_EQ(notices("model_name=qwen3-30b-a3b").find("text decoder"), std::string::npos);
  // Of a command line, and of a file that describes no model, they ask for what is not built.
  for (const std::string key : {"use_multimodal", "use_audio", "use_mrope"}) {
    EXPECT_NE(refusal(key + "=true").find(key + "=true is planned"), std::string::npos)
        << refusal(key + "=true");
    EXPECT_NE(refusal(written("run", {{key, true}})).find(key), std::string::npos);
  }
}

TEST_F(ReferenceModelFiles, UnderAnotherNameAreRefusedByTheirBlock) {
  const nlohmann::json models = reference_models();
  for (const auto& [name, missing] :
       std::map<std::string, std::string>{{"gemma2-9b", "soft caps"},
                                          {"gemma4-26b", "beside a dense MLP"},
                                          {"gemma4-e2b", "an embedding for each"},
                                          {"deepseek4-tiny", "compressed attention"},
                                          {"gpt3-52k", "LayerNorm"},
                                          {"olmo3-7b", "norms after attention"},
                                          {"qwen3.5-35b-a3b-fp8", "without -fp8"}}) {
    const std::string problem = refusal(written("mine", models.at(name)));
    EXPECT_NE(problem.find(missing), std::string::npos) << problem;
    EXPECT_NE(problem.find("not built yet"), std::string::npos) << problem;
  }
}

}  // namespace
}  // namespace switchyard
