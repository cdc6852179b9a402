// Test support for `switchyard verify`: runs the command in this process, and copies cases to damage.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "cli/verify_command.h"
#include "core/error.h"
#include "core/testing.h"

namespace switchyard::verify_test {

namespace fs = std::filesystem;

inline const fs::path kGolden = fs::path(kSourceFolder) / "tests/golden";

struct Outcome {
  int status = 0;
  std::string out, err;
};

inline Outcome verify(const std::vector<std::string>& args) {
  Outcome outcome;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  try {
    outcome.status = verify_command(args);
  } catch (const Error& error) {
    outcome.status = error.kind() == Error::Kind::usage ? 2 : 1;
    fprintf(stderr, "%s\n", error.what());
  }
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

inline void expect_pass(std::vector<std::string> args, const std::string& keys) {
  std::istringstream words(keys);
  for (std::string word; words >> word;) args.push_back(word);
  const Outcome outcome = verify(args);
  EXPECT_EQ(outcome.status, 0) << keys << "\n" << outcome.out << outcome.err;
}

// A copy of a case in its own folder, for a test to damage.
class DamagedCase : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / fmt::format("verify_test_{}", getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path copy(const std::string& name) {
    const fs::path to = folder_ / fs::path(name).filename();
    fs::copy(kGolden / name, to, fs::copy_options::recursive);
    return to;
  }
  // Changes one element of a tensor in a safetensors file.
  static void change(const fs::path& file, const std::string& name, std::size_t element, float value) {
    std::map<std::string, Tensor> tensors;
    std::map<std::string, std::string> metadata;
    {
      const SafetensorsFile stored = SafetensorsFile::open(file);
      for (const auto& item : stored.entries()) tensors[item.first] = stored.read(item.first);
      metadata = stored.metadata();
    }
    tensors.at(name).span<float>()[element] = value;
    write_safetensors(file, tensors, metadata);
  }
  static std::string text_of(const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  static void write(const fs::path& file, const std::string& text) {
    std::ofstream(file, std::ios::binary) << text;
  }

  static void expect_difference(const std::vector<std::string>& args, const std::string& first) {
    const Outcome outcome = verify(args);
    EXPECT_EQ(outcome.status, 3) << outcome.out << outcome.err;
    EXPECT_NE(outcome.out.find("FAIL: first difference in " + first), std::string::npos) << outcome.out;
  }
  static void expect_refusal(const std::vector<std::string>& args, const std::string& part) {
    const Outcome outcome = verify(args);
    EXPECT_EQ(outcome.status, 2) << outcome.out << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }

  fs::path folder_;
};

}  // namespace switchyard::verify_test
