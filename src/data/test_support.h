// Helpers for the tests of this folder.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>

#include "core/error.h"
#include "core/json_file.h"
#include "data/build.h"

namespace switchyard {

// The rounds of a property test; more with SWITCHYARD_SOAK.
inline int rounds(int usual) {
  return std::getenv("SWITCHYARD_SOAK") != nullptr ? 50 * usual : usual;
}

inline std::uint32_t draw(std::mt19937& random) {
  return static_cast<std::uint32_t>(random());
}

inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// Gives each test its own folder for texts and for data built from them.
class TokenTest : public ::testing::Test {
 protected:
  TokenTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "switchyard_tokens_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TokenTest() override { std::filesystem::remove_all(path_); }

  std::string write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(path_ + "/" + name).parent_path());
    std::ofstream(path_ + "/" + name, std::ios::binary) << content;
    return path_ + "/" + name;
  }
  std::string read(const std::string& name) const { return read_whole_file(path_ + "/" + name); }

  // Builds `documents` texts of random length, as JSON lines, into `tokens`.
  TokenFolderInfo build(int documents, double eval_fraction, std::int64_t shard_tokens, unsigned seed = 1) {
    std::mt19937 random(seed);
    std::string lines;
    for (int i = 0; i < documents; ++i) {
      lines += R"({"text":"document )" + std::to_string(i) + std::string(random() % 40, 'x') + "\"}\n";
    }
    write("texts/lines.jsonl", lines);
    std::filesystem::remove_all(path_ + "/tokens");
    return build_token_folder(options(eval_fraction, shard_tokens), pool_).info;
  }
  BuildOptions options(double eval_fraction, std::int64_t shard_tokens) const {
    BuildOptions options{path_ + "/texts", path_ + "/tokens", "byte", "", {.eval_fraction = eval_fraction}};
    options.shard_tokens = shard_tokens;
    return options;
  }
  SplitData tokens(PackingOptions packing, bool evaluates = false) const {
    return make_tokenized(path_ + "/tokens", packing, evaluates);
  }

  ThreadPool pool_{2};
  std::string path_;
};

}  // namespace switchyard
