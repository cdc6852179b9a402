#include "engine/output_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

class OutputFiles : public ::testing::Test {
 protected:
  OutputFiles() : root_(fs::path(testing::TempDir()) / ("output_files_" + std::to_string(::getpid()))) {
    fs::create_directories(root_ / "texts/more/.hidden");
    write("texts/more/a.txt");
    write("text.jsonl");
    write("other.jsonl");
    fs::create_symlink(at("text.jsonl"), at("link"));
    fs::create_hard_link(at("texts/more/a.txt"), at("hard"));
  }
  ~OutputFiles() override { fs::remove_all(root_); }
  std::string at(const std::string& name) const { return (root_ / name).string(); }
  void write(const std::string& name) const { std::ofstream(root_ / name) << "text\n"; }

  // The error of a training that writes these.
  std::string problem(const std::vector<NamedOutput>& outputs, const std::string& data,
                      const std::string& type = "text") const {
    const std::vector<std::string> settings{"dataset_type=" + type, "data_path=" + data,
                                            "tokenizer_path=" + at("other.jsonl")};
    try {
      require_outputs_apart("train", Config::from_args(settings), outputs);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::usage);
      return error.what();
    }
    return "";
  }
  bool is_refused(const std::string& path, const std::string& data) const {
    return problem({{"metrics_file", path}}, data).find("metrics_file=" + path) != std::string::npos;
  }

  const fs::path root_;
};

TEST_F(OutputFiles, AreNotWhatIsRead) {
  EXPECT_TRUE(is_refused(at("text.jsonl"), at("text.jsonl")));
  EXPECT_TRUE(is_refused(at("texts/../text.jsonl"), at("other.jsonl") + ":" + at("text.jsonl")));
  EXPECT_TRUE(is_refused(at("link"), at("text.jsonl")));
  EXPECT_TRUE(is_refused(at("text.jsonl"), at("link")));
  EXPECT_TRUE(is_refused(at("hard"), at("texts")));
  EXPECT_TRUE(is_refused(at("other.jsonl"), at("text.jsonl")));  // the tokenizer
  EXPECT_FALSE(is_refused(at("new.jsonl"), at("text.jsonl")));
  EXPECT_FALSE(is_refused("/dev/null", at("text.jsonl")));
  EXPECT_FALSE(is_refused("", at("text.jsonl")));
}

TEST_F(OutputFiles, DoNotBecomeTexts) {
  EXPECT_TRUE(is_refused(at("texts/new.jsonl"), at("texts")));
  EXPECT_FALSE(is_refused(at("texts/more/.hidden/new.jsonl"), at("texts")));
  EXPECT_FALSE(is_refused(at("new.jsonl"), at("texts")));
  EXPECT_EQ(problem({{"metrics_file", at("texts/new.jsonl")}}, at("texts"), "tokenized"), "");
}

TEST_F(OutputFiles, AreTwo) {
  EXPECT_NE(problem({{"metrics_file", at("m")}, {"routing_record", at("texts/../m")}}, at("text.jsonl"))
                .find("another file than metrics_file"),
            std::string::npos);
  EXPECT_EQ(problem({{"metrics_file", "/dev/null"}, {"routing_record", "/dev/null"}}, at("text.jsonl")), "");
}

}  // namespace
}  // namespace switchyard
