// Tests GGUF files: logits equal those of transformers on dequantized weights; conversion to checkpoints.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "checkpoint/safetensors.h"
#include "convert/convert.h"
#include "convert/logits.h"
#include "core/error.h"
#include "core/json_file.h"
#include "core/testing.h"
#include "models/families/hub_source.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> stored_models() {
  std::vector<fs::path> files;
  for (const auto& found : fs::recursive_directory_iterator(fs::path(kSourceFolder) / "tests/golden/gguf"))
    if (found.path().extension() == ".gguf") files.push_back(found.path());
  std::sort(files.begin(), files.end());
  return files;
}

class GgufModel : public testing::TestWithParam<fs::path> {
 protected:
  GgufModel() {
    std::string pattern = (fs::temp_directory_path() / "switchyard_gguf_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~GgufModel() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  fs::path folder_;
};
INSTANTIATE_TEST_SUITE_P(Stored, GgufModel, testing::ValuesIn(stored_models()), [](const auto& param) {
  std::string name = param.param.parent_path().filename().string() + "_" + param.param.stem().string();
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

TEST_P(GgufModel, HasTransformersLogits) {
  fs::path expected_file = GetParam();
  expected_file.replace_extension(".expected.safetensors");
  const auto expected = SafetensorsFile::open(expected_file.string());
  const Tensor tokens = expected.read("input_ids"), logits = expected.read("logits");
  const Tensor found = stored_logits_of(GetParam().string(), tokens.reshaped({1, tokens.size()}));
  ASSERT_EQ(found.size(), logits.size());
  double largest = 0, difference = 0;
  for (std::int64_t i = 0; i < logits.size(); ++i) {
    const double want = logits.data<float>()[i];
    largest = std::max(largest, std::abs(want));
    difference = std::max(difference, std::abs(static_cast<double>(found.data<float>()[i]) - want));
  }
  EXPECT_LE(difference, 2e-5 * largest);
}

// What an importer finds in the metadata is what transformers' own config.json says.
TEST_P(GgufModel, MetadataSaysWhatTheConfigSays) {
  const nlohmann::json theirs = read_json_file((GetParam().parent_path() / "config.json").string());
  const nlohmann::json ours = open_hub_source(GetParam().string()).config;
  int compared = 0;
  for (const auto& [key, value] : ours.items()) {
    if (!theirs.contains(key) || key == "intermediate_size") continue;
    if (key == "rope_parameters")
      EXPECT_EQ(value.at("rope_theta"), theirs.at(key).at("rope_theta"));
    else
      EXPECT_EQ(value, theirs.at(key)) << key;
    ++compared;
  }
  EXPECT_GE(compared, 12);
}

TEST_P(GgufModel, BecomesACheckpointOfTheSameValues) {
  ConvertRequest request;
  request.source = GetParam().string();
  request.destination = (folder_ / "converted").string();
  const ConvertReport report = convert(request, [](const std::string&) {});
  EXPECT_EQ(report.target, ConvertTarget::switchyard);
  const Tensor tokens(DType::i32, {1, 8});
  for (std::int32_t i = 0; i < 8; ++i) tokens.data<std::int32_t>()[i] = 3 * i + 1;
  const Tensor from_file = stored_logits_of(request.source, tokens),
               from_checkpoint = stored_logits_of(request.destination, tokens);
  ASSERT_EQ(from_file.bytes(), from_checkpoint.bytes());
  EXPECT_EQ(std::memcmp(from_file.raw(), from_checkpoint.raw(), from_file.bytes()), 0);
}

// Rows in pieces are the rows of the whole.
TEST_P(GgufModel, PiecesOfAWeightAreItsRows) {
  const HubSource source = open_hub_source(GetParam().string());
  for (const std::string& name : source.weights->names()) {
    const Tensor whole = source.weights->read(name);
    const std::int64_t rows = whole.dim(0), step = std::max<std::int64_t>(1, rows / 3);
    for (std::int64_t begin = 0; begin < rows; begin += step) {
      const std::int64_t end = std::min(rows, begin + step);
      const Tensor piece = source.weights->take_rows(name, begin, end), same = whole.slice_rows(begin, end);
      ASSERT_EQ(piece.bytes(), same.bytes()) << name;
      EXPECT_EQ(std::memcmp(piece.raw(), same.raw(), piece.bytes()), 0) << name << " from row " << begin;
    }
  }
}

// A rule of splitting text that is not known is found before anything is written.
TEST_P(GgufModel, WithAnUnknownTokenizerLeavesNothing) {
  std::string bytes = read_whole_file(GetParam().string());
  const std::size_t kind = bytes.find("tokenizer.ggml.model");
  ASSERT_NE(kind, std::string::npos);
  bytes[kind + std::string("tokenizer.ggml.model").size() + 12] = 'X';  // behind the type and the length
  ConvertRequest request;
  request.source = (folder_ / "m.gguf").string();
  request.destination = (folder_ / "converted").string();
  std::ofstream(request.source, std::ios::binary) << bytes;
  try {
    convert(request, [](const std::string&) {});
    ADD_FAILURE() << "converted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    EXPECT_NE(std::string(error.what()).find("tokenizer.ggml.model"), std::string::npos) << error.what();
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "the source alone";
}

// The test compares the log-probability of the token after "qwertyuiopasdfgh" with numpy's in float64, which
// is -1.44527 without rope_freqs.weight. llama.cpp multiplies in float16 and gets -1.4545 with the tensor.
TEST(GgufModels, DivideFrequenciesOfRotation) {
  const std::string path = (fs::path(kSourceFolder) / "tests/golden/gguf_small/rope_freqs.gguf").string();
  const std::string text = "qwertyuiopasdfgh";
  const Tensor tokens(DType::i32, {1, std::ssize(text)});
  for (std::size_t i = 0; i < text.size(); ++i) tokens.data<std::int32_t>()[i] = text[i] - 'a';
  const Tensor logits = stored_logits_of(path, tokens);
  const std::int64_t vocab = logits.size() / std::ssize(text);
  const std::span<const float> last =
      logits.span<float>().subspan(static_cast<std::size_t>(logits.size() - vocab));
  double sum = 0;
  for (const float logit : last) sum += std::exp(static_cast<double>(logit));
  constexpr std::size_t kEnd = 28;
  EXPECT_EQ(*std::ranges::max_element(last), last[kEnd]);
  EXPECT_NEAR(static_cast<double>(last[kEnd]) - std::log(sum), -1.4523901, 1e-5);
}

TEST(GgufModels, AreStored) {
  EXPECT_EQ(stored_models().size(), 11u);
}

}  // namespace
}  // namespace switchyard
