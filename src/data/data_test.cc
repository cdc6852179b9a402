// Batches: synthetic ones against the reference's, text ones against
// the documents that were packed into them.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "checkpoint/safetensors.h"
#include "core/testing.h"
#include "data/dataset.h"
#include "data/text_files.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

std::vector<std::int32_t> values(const Tensor& t) {
  return {t.data<std::int32_t>(), t.data<std::int32_t>() + t.size()};
}

TEST(Synthetic, EqualsTheReference) {
  const auto golden =
      SafetensorsFile::open(std::string(kSourceFolder) + "/tests/golden/jax/synthetic.safetensors");
  for (std::int64_t vocab : {256, 129280}) {
    const auto dataset = make_synthetic(8, 32, vocab);
    for (std::int64_t step : {0, 1}) {
      const Batch batch = dataset->read(8 * step, 8);
      const auto expect = [&](const char* field, const Tensor& ours) {
        const Tensor theirs =
            golden.read("vocab" + std::to_string(vocab) + "/batch" + std::to_string(step) + "/" + field);
        EXPECT_EQ(ours.shape(), theirs.shape());
        EXPECT_EQ(values(ours), values(theirs)) << field;
      };
      expect("inputs", batch.inputs);
      expect("targets", batch.targets);
      expect("inputs_position", batch.inputs_position);
      expect("inputs_segmentation", batch.inputs_segmentation);
      expect("targets_segmentation", batch.targets_segmentation);
    }
  }
}

class TextFolder : public ::testing::Test {
 protected:
  TextFolder() : tokenizer_(make_tokenizer("byte", "")) {
    std::string pattern = (fs::temp_directory_path() / "switchyard_data_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TextFolder() override { fs::remove_all(path_); }

  std::string file(const std::string& name, const std::string& text) {
    const fs::path path = fs::path(path_) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  SplitData text(std::int64_t batch, std::int64_t sequence, double eval = 0, std::uint32_t seed = 0) {
    return make_text(path_, *tokenizer_, {batch, sequence, seed}, {.eval_fraction = eval}, pool_);
  }
  SplitData text_of(const std::string& paths, std::int64_t batch, std::int64_t sequence) {
    return make_text(paths, *tokenizer_, {batch, sequence}, {}, pool_);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  ThreadPool pool_{2};
  std::string path_;
};

// Many lines, no two equal.
std::string numbered_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "line " + std::to_string(i * 7919) + (i % 40 == 0 ? "\n\n" : "\n");
  return text;
}

template <typename Action>
void expect_error(Action action, const std::string& text) {
  try {
    action();
    ADD_FAILURE() << "accepted, expected an error with: " << text;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Error::Kind::usage);
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
  }
}

TEST_F(TextFolder, PacksDocumentsIntoRows) {
  file("a", "abc");
  file("b/c", "defgh");
  auto data = text(1, 4);  // stream: a b c | d e f g h |, 10 tokens: 2 rows of 4 + 1
  EXPECT_EQ(data.eval, nullptr);
  EXPECT_EQ(data.train->rows(), 2);
  std::set<std::vector<std::int32_t>> rows;
  for (std::int64_t step : {0, 1}) {
    const Batch batch = data.train->read(step, 1);
    rows.insert(values(batch.inputs));
    if (values(batch.inputs)[0] == 'a') {
      EXPECT_EQ(values(batch.inputs), (std::vector<std::int32_t>{'a', 'b', 'c', 256}));
      EXPECT_EQ(values(batch.targets), (std::vector<std::int32_t>{'b', 'c', 256, 0}));
      EXPECT_EQ(values(batch.targets_segmentation), (std::vector<std::int32_t>{1, 1, 1, 0}));
      EXPECT_EQ(values(batch.inputs_segmentation), (std::vector<std::int32_t>{1, 1, 1, 1}));
      EXPECT_EQ(values(batch.inputs_position), (std::vector<std::int32_t>{0, 1, 2, 3}));
    } else {
      EXPECT_EQ(values(batch.inputs), (std::vector<std::int32_t>{'d', 'e', 'f', 'g'}));
      EXPECT_EQ(values(batch.targets), (std::vector<std::int32_t>{'e', 'f', 'g', 'h'}));
    }
  }
  EXPECT_EQ(rows.size(), 2u);
}

TEST_F(TextFolder, PositionsRestartInsideARow) {
  file("a", "ab");
  file("b", "cdefg");
  const Batch batch = text(1, 8).train->read(0, 1);  // a b | c d e f g |
  EXPECT_EQ(values(batch.inputs_segmentation), (std::vector<std::int32_t>{1, 1, 1, 2, 2, 2, 2, 2}));
  EXPECT_EQ(values(batch.inputs_position), (std::vector<std::int32_t>{0, 1, 2, 0, 1, 2, 3, 4}));
  EXPECT_EQ(values(batch.targets_segmentation), (std::vector<std::int32_t>{1, 1, 0, 2, 2, 2, 2, 2}));
}

// The inputs of `count` rows from `first` on.
std::vector<std::vector<std::int32_t>> inputs(Dataset& data, std::int64_t first, std::int64_t count) {
  const Batch batch = data.read(first, count);
  std::vector<std::vector<std::int32_t>> rows;
  for (std::int64_t b = 0; b < count; ++b) rows.push_back(values(batch.inputs.slice_rows(b, b + 1)));
  return rows;
}

TEST_F(TextFolder, EveryEpochSeesEveryRowInANewOrder) {
  file("a", numbered_lines(100));
  auto data = text(2, 16, 0, 5);
  const std::int64_t rows = data.train->rows();
  ASSERT_GE(rows, 20);
  const auto first = inputs(*data.train, 0, rows), second = inputs(*data.train, rows, rows);
  EXPECT_NE(first, second);
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), first.size());
  EXPECT_EQ(std::set(first.begin(), first.end()), std::set(second.begin(), second.end()));
  auto again = text(2, 16, 0, 5);
  EXPECT_EQ(inputs(*again.train, rows + 3, 2), inputs(*data.train, rows + 3, 2));
  EXPECT_NE(inputs(*text(2, 16, 0, 6).train, 0, 2), inputs(*data.train, 0, 2));
}

TEST_F(TextFolder, ARowDoesNotDependOnTheBatchItComesIn) {
  file("a", numbered_lines(2000));
  auto data = text(2, 16, 0.2, 5);
  for (Dataset* side : {data.train.get(), data.eval.get()}) {
    const auto whole = inputs(*side, 0, 3 * side->rows());  // the third pass lies across epochs in some batch
    for (std::int64_t batch : {1, 3, 7}) {
      for (std::int64_t row = 0; row + batch <= 3 * side->rows(); row += batch) {
        const auto part = inputs(*side, row, batch);
        ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + row))
            << "batch " << batch << " row " << row;
      }
    }
  }
}

TEST_F(TextFolder, HeldOutTextIsNotTrainedOn) {
  const std::string all = numbered_lines(20000);
  file("a", all);
  const SplitText split = split_text({path_ + "/a"}, {"text", 0.2});
  std::size_t held = 0, kept = 0;
  for (const auto& d : split.eval) held += d.size();
  for (const auto& d : split.train) kept += d.size();
  EXPECT_EQ(held + kept, all.size());
  EXPECT_NEAR(static_cast<double>(held) / static_cast<double>(all.size()), 0.2, 0.12);
  auto data = text(4, 64, 0.2);
  ASSERT_NE(data.eval, nullptr);
  // Every token of the held-out side is an input once, but for the last one; the rest is padding.
  std::int64_t tokens = 0;
  for (std::int32_t s : values(data.eval->read(0, data.eval->rows() + 3).inputs_segmentation))
    tokens += s != 0;
  EXPECT_EQ(tokens, static_cast<std::int64_t>(held + split.eval.size()) - 1);
}

TEST_F(TextFolder, SmallTextStillHoldsOneSectionOut) {
  file("a", "first text");
  file("b", "second text");
  const SplitText split = split_text({path_ + "/a", path_ + "/b"}, {"text", 1e-9});
  EXPECT_EQ(split.train.size(), 1u);
  EXPECT_EQ(split.eval.size(), 1u);
}

TEST_F(TextFolder, ReadsAFileOnceThroughItsLinks) {
  file("texts/z", "some text that is long enough");
  file("blobs/1", "another");
  fs::create_symlink("z", fs::path(path_) / "texts/link");
  fs::create_symlink("../blobs/1", fs::path(path_) / "texts/a");
  fs::create_directory_symlink("..", fs::path(path_) / "texts/back");
  EXPECT_EQ(find_text_files(path_ + "/texts"),
            (std::vector<std::string>{path_ + "/texts/a", path_ + "/texts/z"}));
}

TEST_F(TextFolder, JsonLinesUnderOtherNames) {
  const std::string lines =
      "{\"text\": \"one\", \"score\": NaN}\n{\"text\": \"two \\ud800\", \"x\": -Infinity}\n";
  for (const char* name : {"a.jsonl", "a.JSONL", "a.json", "a.NDJSON"}) {
    file(name, lines);
    EXPECT_EQ(split_text({path_ + "/" + name}, {}).train,
              (std::vector<std::string>{"one", "two \xef\xbf\xbd"}))
        << name;
  }
  file("whole.json", "{\n\"text\": \"no lines\"\n}\n");
  EXPECT_EQ(split_text({path_ + "/whole.json"}, {}).train, std::vector<std::string>{"no lines"});
  file("broken.jsonl", "{\"text\": \"one\"}\n{\"text\": two}\n");
  expect_error([&] { split_text({path_ + "/broken.jsonl"}, {}); }, "broken.jsonl:2");
  expect_error([&] { split_text({path_ + "/broken.jsonl"}, {}); }, "column 11");
}

TEST_F(TextFolder, SkipsBinaryAndHiddenFiles) {
  file("z", "some text that is long enough");
  file(".git/config", "hidden");
  file("binary", std::string("a\0b", 3));
  EXPECT_EQ(find_text_files(path_).size(), 2u);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(split_text(find_text_files(path_), {}).train.size(), 1u);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("binary: skipped"), std::string::npos);
}

TEST_F(TextFolder, SectionsLoseNothing) {
  for (const std::string& whole : {std::string(), std::string(9000, 'x'), numbered_lines(5000),
                                   std::string("é") + std::string(30000, '\n'), [] {
                                     std::string s = "a";
                                     for (int i = 0; i < 9000; ++i) s += "é";
                                     return s;
                                   }()}) {
    std::string joined;
    for (std::string_view section : cut_sections(whole)) {
      EXPECT_LE(section.size(), 8192u);
      EXPECT_NE(static_cast<unsigned char>(section[0]) & 0xc0u, 0x80u);
      joined += section;
    }
    EXPECT_EQ(joined, whole);
  }
}

TEST_F(TextFolder, NamesWhatIsMissing) {
  expect_error([&] { text_of(path_ + "/absent", 1, 1); }, "no such file or folder");
  expect_error([&] { text_of(path_ + "::" + path_, 1, 1); }, "empty path");
  expect_error([&] { text(1, 1); }, "found none");
  const std::string a = file("a", "abc");
  expect_error([&] { text(1, 4); }, "4 training tokens, expected at least 5");
  expect_error([&] { text(1, 2, 0.5); }, "all 1 sections of the text are held out");
  expect_error([&] { text(1, 2, 1.5); }, "eval_fraction");
  EXPECT_NO_THROW(text_of(a + ":" + a, 1, 4));
}

}  // namespace
}  // namespace switchyard
