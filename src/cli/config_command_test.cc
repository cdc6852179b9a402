#include "cli/config_command.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

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

TEST(ConfigCommand, ListsKeys) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(run({"--list"}), 0);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("num_experts_per_tok"), std::string::npos);
  EXPECT_NE(text.find("planned"), std::string::npos);
  EXPECT_NE(text.find("inert"), std::string::npos);
}

TEST(ConfigCommand, WritesJson) {
  const std::string file = (std::filesystem::path(testing::TempDir()) / "config_command_test.json").string();
  EXPECT_EQ(run({"--json", file, "steps=3"}), 0);
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(file))["config"]["steps"], 3);
  EXPECT_EQ(run({"--list", "--json", file}), 0);
  EXPECT_GT(nlohmann::json::parse(std::ifstream(file))["keys"].size(), 500u);
  std::filesystem::remove(file);
  EXPECT_THROW(run({"--json", "/nonexistent/file.json"}), Error);
}

TEST(ConfigCommand, RefusesWrongCommandLines) {
  EXPECT_THROW(run({"--lists"}), Error);
  EXPECT_THROW(run({"--json"}), Error);
  EXPECT_THROW(run({"--list", "steps=1"}), Error);
  EXPECT_THROW(run({"stepz=1"}), Error);
}

}  // namespace
}  // namespace switchyard
