// How well a stored model predicts a text, from the command line to the file.
#include <cmath>
#include <numbers>

#include "child.h"
#include "convert/logits.h"
#include "core/testing.h"
#include "eval/score.h"
#include "gguf/gguf_file.h"
#include "tokenizer/tokenizer.h"

namespace switchyard::cli_test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string golden(const std::string& name) {
  return (fs::path(kSourceFolder) / "tests/golden" / name).string();
}

const std::string kText =
    "A switchyard sorts wagons onto tracks; this one sorts tokens onto experts.\nIt na\xc3\xafvely counts to "
    "42.\n";

class Evaluating : public ProgramTest {
 protected:
  json eval(const Arguments& arguments) {
    fs::remove(path("e.json"));
    const Finished done = run(Arguments{"eval"} + arguments + Arguments{"--json", "e.json"});
    EXPECT_EQ(done.status, 0) << done.err;
    out_ = done.out;
    return json::parse(read("e.json"));
  }
  std::string out_;
};

void expect_near(const json& got, const json& want) {
  EXPECT_EQ(got["tokens"], want["tokens"]);
  for (const char* key : {"nats_per_token", "bits_per_byte", "perplexity"})
    EXPECT_NEAR(got[key].get<double>() / want[key].get<double>(), 1, 1e-5) << key;
  ASSERT_EQ(got.contains("against"), want.contains("against"));
  if (!want.contains("against")) return;
  for (const char* key : {"mean_kl", "median_kl", "p99_kl"}) {
    const double wanted = want["against"][key];
    EXPECT_NEAR(got["against"][key].get<double>(), wanted, 1e-5 + 1e-3 * wanted) << key;
  }
}

// The logits of `convert --verify`, layer by layer on one rank, of the text in one window.
TEST_F(Evaluating, AGgufFileByItsLogits) {
  write("text.txt", kText);
  const std::string model = golden("gguf/qwen3moe/Q4_0.gguf");
  const auto tokenizer = make_tokenizer("gguf", model);
  std::vector<std::int32_t> ids;
  if (tokenizer->bos()) ids.push_back(*tokenizer->bos());
  const std::size_t begins = ids.size();
  for (const std::int32_t id : tokenizer->encode(kText)) ids.push_back(id);
  const auto count = static_cast<std::int64_t>(ids.size());
  ASSERT_GT(count, 20);
  const Tensor logits =
      stored_logits_of(model, Tensor::of<std::int32_t>({1, count}, std::span<const std::int32_t>(ids)));
  const auto vocab = static_cast<std::size_t>(logits.dim(2));
  double nats = 0;
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    const auto of_token = logits.span<float>().subspan(i * vocab, vocab);
    double sum = 0;
    for (const float x : of_token) sum += std::exp(static_cast<double>(x));
    nats += std::log(sum) - of_token[static_cast<std::size_t>(ids[i + 1])];
  }
  const Arguments how{model,      "data_path=text.txt", "dtype=float32", "weight_dtype=float32",
                      "--window", std::to_string(count)};
  const json got = eval(how);
  EXPECT_EQ(got["tokens"], count - 1);
  EXPECT_EQ(got["skipped"], 1);
  EXPECT_NEAR(got["nats_per_token"].get<double>(), nats / static_cast<double>(count - 1), 1e-4);
  EXPECT_NEAR(got["perplexity"].get<double>(), std::exp(got["nats_per_token"].get<double>()),
              1e-9 * got["perplexity"].get<double>());
  const std::size_t skipped = begins > 0 ? 0 : tokenizer->decode(std::span(ids).first(1)).size();
  EXPECT_EQ(got["bytes"], kText.size() - skipped);
  EXPECT_NEAR(got["bits_per_byte"].get<double>(),
              nats / std::numbers::ln2 / static_cast<double>(kText.size() - skipped), 1e-4);
  EXPECT_FALSE(got.contains("against"));
  for (const char* word : {"perplexity", "bits a byte", "1 skipped", "stride"})
    EXPECT_NE(out_.find(word), std::string::npos) << out_;
}

TEST_F(Evaluating, TheSameFiguresOnAnyMesh) {
  write("text.txt", kText);
  const Arguments how{golden("gguf/qwen3moe/Q4_0.gguf"),
                      "data_path=text.txt",
                      "dtype=float32",
                      "weight_dtype=float32",
                      "--window",
                      "16",
                      "--stride",
                      "5",
                      "--against",
                      golden("gguf/qwen3moe/IQ4_NL.gguf"),
                      "--against-key",
                      "dtype=float32",
                      "--against-key",
                      "weight_dtype=float32"};
  const json one = eval(how);
  EXPECT_GT(one["windows"].get<int>(), 5);
  EXPECT_GT(one["against"]["mean_kl"].get<double>(), 1e-5);
  EXPECT_LT(one["against"]["mean_kl"].get<double>(), 1);
  EXPECT_LE(one["against"]["median_kl"], one["against"]["p99_kl"]);
  EXPECT_GT(one["against"]["same_top"].get<double>(), 0.3);
  EXPECT_LE(one["against"]["same_top"].get<double>(), 1);
  EXPECT_NE(out_.find("99th percentile"), std::string::npos);
  for (const Arguments& layout :
       {Arguments{"ranks=4", "ici_expert_parallelism=4"}, Arguments{"ranks=2", "ici_tensor_parallelism=2"},
        Arguments{"ranks=4", "ici_expert_parallelism=2", "use_ring_of_experts=true",
                  "ici_fsdp_parallelism=2"},
        Arguments{"ranks=2", "ici_pipeline_parallelism=2"}, Arguments{"per_device_batch_size=3"},
        Arguments{"ranks=4", "ici_expert_parallelism=4", "ragged_buffer_factor=0.3"},
        Arguments{"ranks=4", "ici_expert_parallelism=4", "eval_ragged_buffer_factor=0.3",
                  "moe_dropless_fallback=layer"}})
    expect_near(eval(how + layout), one);
  const json capped =
      eval(how + Arguments{"ranks=4", "ici_expert_parallelism=4", "eval_ragged_buffer_factor=0.3"});
  EXPECT_GT(std::abs(capped["nats_per_token"].get<double>() - one["nats_per_token"].get<double>()), 1e-4);
}

// Blocks of a GGUF file are multiplied as they are, and say what float32 weights say.
TEST_F(Evaluating, BlocksOfAFileAsTheyAreStored) {
  write("text.txt", kText);
  for (const auto& [file, type] : {std::pair{"qwen3moe/Q4_0", "int4"},
                                   {"qwen3moe/IQ4_NL", "int8"},
                                   {"qwen3moe/MXFP4", "mxfp4"},
                                   {"deepseek3/Q4_1", "int4a"},
                                   {"deepseek3/Q5_0", "int8"}}) {
    SCOPED_TRACE(file);
    const std::string model = golden(fmt::format("gguf/{}.gguf", file));
    for (const Arguments& layout : {Arguments{}, Arguments{"ranks=2", "ici_expert_parallelism=2"},
                                    Arguments{"ranks=2", "ici_tensor_parallelism=2"}}) {
      fs::remove(path("e.json"));
      Arguments how{"eval", model, "data_path=text.txt", "--against", model, "--json", "e.json"};
      how = how + Arguments{"dtype=float32", "weight_dtype=float32"} + layout;
      for (const char* key : {"dtype=float32", "weight_dtype=float32", "weight_format=dense"})
        how = how + Arguments{"--against-key", key};
      const Finished done = run(how);
      ASSERT_EQ(done.status, 0) << done.err;
      EXPECT_NE(done.err.find(fmt::format("weights stay as they are stored, in blocks of {}", type)),
                std::string::npos)
          << done.err;
      const json got = json::parse(read("e.json"));
      EXPECT_LT(got["against"]["p99_kl"].get<double>(), 1e-8);
      EXPECT_EQ(got["against"]["same_top"].get<double>(), 1);
    }
  }
}

TEST_F(Evaluating, AModelAgainstItself) {
  write("text.txt", kText);
  const Arguments how{golden("hf/qwen3moe-tiny"), "tokenizer_type=byte", "data_path=text.txt", "--against",
                      golden("hf/qwen3moe-tiny")};
  // The last drops rows: of both, as the strategy of the experts is that of both.
  for (const Arguments& layout : {Arguments{}, Arguments{"ranks=4", "ici_expert_parallelism=4"},
                                  Arguments{"sparse_matmul=false", "capacity_factor=0.5"}}) {
    const json same = eval(how + layout);
    EXPECT_EQ(same["tokens"], kText.size() - 1);
    EXPECT_EQ(same["bytes"], kText.size() - 1);
    EXPECT_EQ(same["against"]["mean_kl"], 0);
    EXPECT_EQ(same["against"]["p99_kl"], 0);
    EXPECT_EQ(same["against"]["same_top"], 1);
  }
  // A key of the command line is the model's alone, one of --against-key the other's.
  const json rounded = eval(how + Arguments{"dtype=bfloat16"});
  EXPECT_GT(rounded["against"]["mean_kl"].get<double>(), 0);
  const json both = eval(how + Arguments{"dtype=bfloat16", "--against-key", "dtype=bfloat16"});
  EXPECT_EQ(both["against"]["mean_kl"], 0);
}

// What a run was trained with is what it is evaluated with.
TEST_F(Evaluating, ARun) {
  train_bytes();
  const json run = eval({"out/run", "data_path=text.txt"});
  EXPECT_EQ(run["window"], 24);
  EXPECT_EQ(run["stride"], 12);
  EXPECT_EQ(run["tokens"], read("text.txt").size() - 1);
  EXPECT_GT(run["nats_per_token"].get<double>(), 0);
}

// A weight of the second layer that is no number: one line that names the layer, of whatever reads the model.
TEST_F(Evaluating, NumbersThatAreNoneAreToldByLayer) {
  const std::string model = golden("gguf/qwen3moe/Q4_0.gguf");
  const GgufFile file = GgufFile::open(model);
  const auto norm = file.at("blk.1.ffn_norm.weight").bytes;
  std::ifstream stream(model, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  const std::size_t at = bytes.find(std::string(reinterpret_cast<const char*>(norm.data()), norm.size()));
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 4, "\xff\xff\xff\x7f");
  write("broken.gguf", bytes);
  write("text.txt", kText);
  for (const Arguments& command :
       {Arguments{"eval", "broken.gguf", "data_path=text.txt"},
        Arguments{"generate", "broken.gguf", "prompt=one", "max_target_length=8"}}) {
    SCOPED_TRACE(command[0]);
    const Finished finished = run(command);
    EXPECT_EQ(finished.status, 1) << finished.err;
    EXPECT_NE(finished.err.find("the first output that is not finite is that of layer 1"), std::string::npos)
        << finished.err;
    const std::size_t error = finished.err.find("switchyard: [");
    EXPECT_EQ(finished.err.find('\n', error), finished.err.size() - 1) << finished.err;
  }
}

TEST_F(Evaluating, RefusesWhatIsWrong) {
  write("text.txt", kText);
  write("short.txt", "a");
  write("binary.txt", "ab\xff");
  const std::string model = golden("gguf/qwen3moe/Q4_0.gguf"), tiny = golden("hf/qwen3moe-tiny");
  const Arguments eval{"eval", model};
  expect_refused({"eval"}, {"[eval]", "FOLDER"});
  expect_refused({"eval", "absent", "data_path=text.txt"}, {"absent", "GGUF"});
  expect_refused(eval, {"data_path", "got none"});
  expect_refused(eval + Arguments{"data_path=absent.txt"}, {"absent.txt"});
  expect_refused(eval + Arguments{"data_path=."}, {"data_path=.", "folder"});
  expect_refused(eval + Arguments{"data_path=binary.txt"}, {"binary.txt", "byte 2"});
  expect_refused({"eval", tiny, "data_path=text.txt"}, {"tokenizer_path", "byte"});
  expect_refused({"eval", tiny, "tokenizer_type=byte", "data_path=short.txt"}, {"short.txt", "got 1"});
  const Arguments text = eval + Arguments{"data_path=text.txt"};
  expect_refused(text + Arguments{"dataset_type=tokenized"}, {"dataset_type=tokenized", "expected text"});
  expect_refused(text + Arguments{"--window", "0"}, {"--window", "1"});
  expect_refused(text + Arguments{"--window", "100000"}, {"--window 100000", "max_target_length"});
  expect_refused(text + Arguments{"--window", "8", "--stride", "9"}, {"--stride", "1 to 8"});
  expect_refused(text + Arguments{"--against-key", "dtype=float32"}, {"--against-key", "--against OTHER"});
  expect_refused(text + Arguments{"--against-key"}, {"--against-key", "value"});
  expect_refused(text + Arguments{"--agaisnt", "x"}, {"--agaisnt", "--against PATH"});
  expect_refused(text + Arguments{"--against", "absent"}, {"--against absent", "GGUF"});
  expect_refused(text + Arguments{"--against", model, "--against-key", "ranks=2"}, {"ranks=2", "one mesh"});
  expect_refused(text + Arguments{"--against", golden("gguf/mixtral/F16.gguf")}, {"--against", "vocabulary"});
  expect_refused(text + Arguments{"--against", model, "--against-key", "tokenizer_type=byte"},
                 {"--against", "other tokens"});
}

}  // namespace
}  // namespace switchyard::cli_test
