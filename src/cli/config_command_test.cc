#include "cli/config_command.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "config/config.h"
#include "config/declaration.h"
#include "core/error.h"

namespace switchyard {
namespace {

int run(const std::vector<std::string>& args) {
  return config_command(args);
}

TEST(ConfigCommand, DescribesACommandLine) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(run({"model_name=deepseek3-tiny", "steps=3"}), 0);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("3  (command line)"), std::string::npos);
  EXPECT_NE(text.find("64  (models/deepseek3-tiny.yml)"), std::string::npos);
}

std::string printed(const std::vector<std::string>& args) {
  testing::internal::CaptureStdout();
  const int status = run(args);
  std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(status, 0);
  return text;
}

std::ptrdiff_t lines_of(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

TEST(ConfigCommand, ListsKeysByRole) {
  const std::string text = printed({"--list"});
  EXPECT_NE(text.find("planned"), std::string::npos);
  EXPECT_NE(text.find("inert"), std::string::npos);
  std::size_t last = 0;
  for (const KeyRole role : kKeyRoles) {
    const std::size_t heading = text.find(role_heading(role) + "\n\n");
    ASSERT_NE(heading, std::string::npos) << role_heading(role);
    EXPECT_GE(heading, last);
    last = heading;
  }
  const std::size_t strategy = text.find(role_heading(KeyRole::strategy)),
                    layout = text.find(role_heading(KeyRole::layout)),
                    ring = text.find("\nuse_ring_of_experts ");
  EXPECT_TRUE(strategy < ring && ring < layout);
  // Every key, one line for each heading and one after it, and one between roles.
  EXPECT_EQ(lines_of(text), std::ssize(all_keys()) + 3 * std::ssize(kKeyRoles) - 1);
}

TEST(ConfigCommand, ListsKeysWithWords) {
  const std::string name = printed({"--list", "SHARED_expert"});
  EXPECT_NE(name.find("\nshared_experts "), std::string::npos);
  EXPECT_EQ(name.find("num_experts_per_tok"), std::string::npos);
  const std::string help = printed({"--list", "latent", "query"});  // both
  EXPECT_NE(help.find("\nq_lora_rank "), std::string::npos);
  EXPECT_EQ(help.find("\nkv_lora_rank "), std::string::npos);
  EXPECT_EQ(help.find(role_heading(KeyRole::data)), std::string::npos);
}

TEST(ConfigCommand, ShowsWhatIsChanged) {
  const std::string text = printed({"--changed", "model_name=deepseek3-tiny", "steps=3", "run_name=x"});
  EXPECT_NE(text.find("3  (command line)"), std::string::npos);
  EXPECT_NE(text.find("64  (models/deepseek3-tiny.yml)"), std::string::npos);
  EXPECT_EQ(text.find("(default)"), std::string::npos);
  EXPECT_EQ(text.find("(base.yml)"), std::string::npos);
  EXPECT_LT(lines_of(text), 60);
  EXPECT_LT(lines_of(printed({"--changed"})), 4);  // the names of run and folder
}

TEST(ConfigCommand, TemplateIsAConfigOfExperts) {
  const std::string file = (std::filesystem::path(testing::TempDir()) / "config_template_test.yml").string();
  std::ofstream(file) << printed({"--template"});
  const Config config = Config::from_args(std::vector<std::string>{file});
  std::filesystem::remove(file);
  EXPECT_TRUE(config.notices().empty());
  EXPECT_GT(config.get_int("num_experts"), 1);
  EXPECT_EQ(config.get_string("tokenizer_type"), "byte");
  EXPECT_GE(config.get_float("learning_rate"), 1e-4);
}

TEST(ConfigCommand, WritesJson) {
  const std::string file = (std::filesystem::path(testing::TempDir()) / "config_command_test.json").string();
  EXPECT_EQ(run({"--json", file, "steps=3"}), 0);
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(file))["config"]["steps"], 3);
  EXPECT_EQ(run({"--list", "--json", file}), 0);
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(file))["keys"].size(), all_keys().size());
  EXPECT_EQ(run({"--list", "use_ring_of_experts", "--json", file}), 0);
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(file))["keys"].at(0).at("name"), "use_ring_of_experts");
  EXPECT_EQ(run({"--changed", "--json", file, "steps=3", "log_period=100"}), 0);
  const nlohmann::json changed = nlohmann::json::parse(std::ifstream(file))["config"];
  EXPECT_TRUE(changed.contains("steps") && !changed.contains("log_period"));
  std::filesystem::remove(file);
  EXPECT_THROW(run({"--json", "/nonexistent/file.json"}), Error);
}

TEST(ConfigCommand, RefusesWrongCommandLines) {
  EXPECT_THROW(run({"--lists"}), Error);
  EXPECT_THROW(run({"--json"}), Error);
  EXPECT_THROW(run({"--list", "steps=1"}), Error);
  EXPECT_THROW(run({"--list", "--changed"}), Error);
  EXPECT_THROW(run({"--template", "steps=1"}), Error);
  EXPECT_THROW(run({"stepz=1"}), Error);
}

}  // namespace
}  // namespace switchyard
