// What goes along with weights: of folders, GGUF files and runs with another tokenizer.
#include "engine/carried_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "core/json_file.h"
#include "core/testing.h"
#include "engine/stored_model.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class CarriedFiles : public ::testing::Test {
 protected:
  CarriedFiles() {
    std::string pattern = (fs::temp_directory_path() / "switchyard_carried_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    write("hub/tokenizer.json", read_whole_file(golden("tokenizer/llama3.json")));
    write("hub/tokenizer_config.json", R"({"eos_token": "<|end_of_text|>"})");
    write("hub/config.json", R"({"eos_token_id": [503, 501], "pad_token_id": 502})");
    write("hub/generation_config.json", R"({"eos_token_id": 503, "top_k": 5})");
    write("hub/chat_template.jinja", "a");
    write("hub/additional_chat_templates/tool_use.jinja", "b");
    write("hub/README.md", "c");
    write("hub/model.safetensors.index.json", "{}");
  }
  ~CarriedFiles() override { fs::remove_all(path_); }

  static std::string golden(const std::string& name) {
    return std::string(kSourceFolder) + "/tests/golden/" + name;
  }
  void write(const std::string& name, const std::string& content) const {
    fs::create_directories((fs::path(path_) / name).parent_path());
    std::ofstream(path_ + "/" + name, std::ios::binary) << content;
  }
  static std::string content(const std::vector<ExtraFile>& files, const std::string& name) {
    for (const ExtraFile& file : files) {
      if (file.name == "tokenizer/" + name) return file.content;
    }
    return "";
  }
  std::vector<ExtraFile> by_run(const RunTokenizer& tokenizer) {
    notes_.clear();
    return carried_by_run(carried_files(path_ + "/hub"), "HUB", tokenizer, &notes_);
  }

  std::string path_;
  std::vector<std::string> notes_;
};

TEST_F(CarriedFiles, OfAFolder) {
  std::vector<std::string> names;
  for (const ExtraFile& file : carried_files(path_ + "/hub")) names.push_back(file.name);
  EXPECT_EQ(names, (std::vector<std::string>{"tokenizer/additional_chat_templates/tool_use.jinja",
                                             "tokenizer/chat_template.jinja", "tokenizer/config.json",
                                             "tokenizer/generation_config.json", "tokenizer/tokenizer.json",
                                             "tokenizer/tokenizer_config.json"}));
}

TEST_F(CarriedFiles, OfAGgufFile) {
  const auto files = carried_files(golden("gguf/qwen3moe/Q4_0.gguf"));
  const json config = json::parse(content(files, "config.json")),
             generation = json::parse(content(files, "generation_config.json"));
  EXPECT_TRUE(config.contains("eos_token_id")) << config;
  EXPECT_NE(std::ranges::find(generation["eos_token_id"], config["eos_token_id"]),
            generation["eos_token_id"].end());
  EXPECT_NE(content(files, "tokenizer.json") + content(files, "tokenizer.model"), "");
}

TEST_F(CarriedFiles, StayWithTheFoldersTokenizer) {
  const auto whole = carried_files(path_ + "/hub");
  for (const char* path : {"/hub", "/hub/tokenizer.json"}) {
    const auto files = by_run({"huggingface", path_ + path, 7});
    EXPECT_EQ(files.size(), whole.size());
    EXPECT_EQ(content(files, "config.json"), content(whole, "config.json"));
    EXPECT_TRUE(notes_.empty());
  }
  EXPECT_EQ(by_run({}).size(), whole.size());
}

TEST_F(CarriedFiles, AnotherTokenizerAddsItsEnd) {
  write("other/my.json", read_whole_file(golden("tokenizer/gpt2.json")));
  const auto files = by_run({"huggingface", path_ + "/other/my.json", 9});
  EXPECT_EQ(content(files, "tokenizer.json"), read_whole_file(golden("tokenizer/gpt2.json")));
  EXPECT_EQ(content(files, "tokenizer_config.json"), "");
  EXPECT_EQ(content(files, "chat_template.jinja"), "");
  EXPECT_EQ(json::parse(content(files, "config.json"))["eos_token_id"], json({503, 501, 9}));
  EXPECT_EQ(json::parse(content(files, "generation_config.json")),
            json::parse(R"({"eos_token_id":[503,9],"top_k":5})"));
  ASSERT_EQ(notes_.size(), 2u);
  EXPECT_NE(notes_[0].find("chat template"), std::string::npos) << notes_[0];
  EXPECT_NE(notes_[1].find("its last token, 9, is added"), std::string::npos) << notes_[1];
  EXPECT_EQ(content(by_run({"byte", "", 503}), "tokenizer.json"), "");
  EXPECT_EQ(content(by_run({"huggingface", path_ + "/other/my.json", 501}), "config.json"),
            content(carried_files(path_ + "/hub"), "config.json"));
}

TEST_F(CarriedFiles, EndsOfThePartForText) {
  fs::remove(path_ + "/hub/generation_config.json");
  write("hub/config.json", R"({"eos_token_id": null, "text_config": {"eos_token_id": 4}})");
  EXPECT_EQ(generation_keys_of(path_ + "/hub").at("decode_end_tokens"), json({4}));
}

}  // namespace
}  // namespace switchyard
