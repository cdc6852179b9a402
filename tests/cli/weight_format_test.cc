// Weights of few bits from the command line: converted or made on load they give the same text on any mesh.
#include <signal.h>

#include "child.h"
#include "core/testing.h"

namespace switchyard::cli_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class WeightFormat : public ProgramTest {
 protected:
  static std::string golden() { return std::string(kSourceFolder) + "/tests/golden/hf/qwen3moe-tiny"; }

  std::string convert(const Arguments& arguments) const {
    const Finished done = run(Arguments{"convert"} + arguments);
    EXPECT_EQ(done.status, 0) << done.err;
    return done.out;
  }

  // Tokens and their log probabilities.
  json generate(const Arguments& arguments, const std::string& prompt = "a text") const {
    const Finished done = run(Arguments{"generate"} + arguments +
                              Arguments{"tokenizer_type=byte", "prompt=" + prompt, "max_target_length=20",
                                        "return_log_prob=true", "--json", "g.json"});
    EXPECT_EQ(done.status, 0) << done.err;
    if (done.status != 0) return {};
    const json made = json::parse(read("g.json"));
    return {{"tokens", made["results"][0]["tokens"]},
            {"log_probs", made["results"][0]["log_probs"]},
            {"format", made["weight_format"]}};
  }
};

TEST_F(WeightFormat, ConvertedIsTheSameAsMadeOnLoad) {
  const json dense = generate({golden()});
  ASSERT_GT(dense["tokens"].size(), 4u);
  convert({golden(), "dense"});
  for (const std::string format : {"int8", "int4", "int4a", "mxfp4"}) {
    SCOPED_TRACE(format);
    const json on_load = generate({golden(), "weight_format=" + format});
    EXPECT_NE(on_load["log_probs"], dense["log_probs"]);
    EXPECT_EQ(generate({"dense", "weight_format=" + format}), on_load);
    const std::string told = convert({golden(), format, "--weights", format});
    for (const char* kind : {"experts", "router", "norms", "embedding", "head"})
      EXPECT_NE(told.find(kind), std::string::npos) << told;
    EXPECT_EQ(generate({format}), on_load);
    EXPECT_EQ(generate({format, "weight_format=" + format}), on_load);
    EXPECT_EQ(run({"inspect", format, "--prove"}).status, 0);
    const std::string shown = run({"inspect", format}).out;
    EXPECT_NE(shown.find(format + " ("), std::string::npos) << shown;
    convert({"dense", format + "-again", "--weights", format});
    EXPECT_EQ(run({"inspect", format, format + "-again"}).status, 0);
  }
}

// Weights of 8 bits are packed from their exact values, and in float32 they are those values, both ways.
TEST_F(WeightFormat, OfEightBitWeights) {
  const std::string folder = std::string(kSourceFolder) + "/tests/golden/quantized/deepseek3-fp8";
  const std::string prompt = "12345";  // bytes below the vocabulary of 64
  convert({folder, "packed", "--weights", "int4"});
  const json packed = generate({"packed", "dtype=bfloat16"}, prompt);
  ASSERT_GT(packed["tokens"].size(), 4u);
  EXPECT_EQ(packed, generate({folder, "weight_format=int4", "dtype=bfloat16"}, prompt));
  const std::string told = convert({folder, "exact", "--dtype", "float32", "--verify"});
  EXPECT_NE(told.find("the same bits"), std::string::npos) << told;
  convert({folder, "rounded", "--verify"});
  const Arguments whole{"dtype=float32", "weight_dtype=float32", "weight_format=dense"};
  const json exact = generate(Arguments{folder} + whole, prompt);
  EXPECT_EQ(generate(Arguments{"exact"} + whole, prompt)["log_probs"], exact["log_probs"]);
  EXPECT_NE(generate(Arguments{"rounded"} + whole, prompt)["log_probs"], exact["log_probs"]);
}

TEST_F(WeightFormat, OnAnyMeshThatCutsNoBlock) {
  convert({golden(), "packed", "--weights", "int4"});
  const json one = generate({"packed"});
  for (const Arguments& mesh :
       {Arguments{"ranks=2", "ici_expert_parallelism=2"}, Arguments{"ranks=2", "ici_fsdp_parallelism=2"},
        Arguments{"ranks=2", "ici_pipeline_parallelism=2"}}) {
    SCOPED_TRACE(mesh.back());
    const json stored = generate(Arguments{"packed"} + mesh);
    EXPECT_EQ(stored, generate(Arguments{golden(), "weight_format=int4"} + mesh));
    EXPECT_EQ(stored["tokens"], one["tokens"]);
  }
  for (const Arguments& from : {Arguments{"packed"}, Arguments{golden(), "weight_format=int4"}}) {
    const Finished cut = run(Arguments{"generate"} + from +
                             Arguments{"tokenizer_type=byte", "ranks=2", "ici_tensor_parallelism=2"});
    EXPECT_EQ(cut.status, 2);
    EXPECT_NE(cut.err.find("cut blocks of 32 inputs by 16 outputs"), std::string::npos) << cut.err;
  }
}

TEST_F(WeightFormat, OfARun) {
  train({"vocab_size=272", "tokenizer_type=byte", "base_emb_dim=32", "base_mlp_dim=32", "base_moe_mlp_dim=32",
         "enable_checkpointing=true", "steps=1", "max_target_length=24"});
  const json on_load = generate({"out/run", "weight_format=int8"});
  ASSERT_EQ(on_load["format"], "int8");
  const Finished done = run({"convert", "out/run", "packed", "--weights", "int8"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_NE(done.err.find("left out: the optimizer's state"), std::string::npos) << done.err;
  EXPECT_EQ(generate({"packed"}), on_load);
}

TEST_F(WeightFormat, StacksCutByFilesAreRead) {
  convert({golden(), "packed", "--file-bytes", "60000", "--weights", "int4"});
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(path("packed")))
    files += entry.path().extension() == ".safetensors";
  EXPECT_GT(files, 2u);
  EXPECT_EQ(generate({"packed"}), generate({golden(), "weight_format=int4"}));
}

// The job says the format: what an unfinished conversion to another one has written is not kept.
TEST_F(WeightFormat, AConversionGoesOnWithTheSameFormatOnly) {
  const Arguments how{golden(), "packed", "--file-bytes", "60000", "--weights"};
  const pid_t child = start_and_stop_at("file converted", Arguments{"convert"} + how + Arguments{"int4"});
  ASSERT_NE(child, 0);
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(fs::exists(path(".saving-packed/weights-00001.safetensors")));
  const std::string told = convert(how + Arguments{"int8"});
  EXPECT_EQ(told.find("earlier attempt"), std::string::npos) << told;
  EXPECT_EQ(generate({"packed"}), generate({golden(), "weight_format=int8"}));
}

TEST_F(WeightFormat, WhatCannotBeIsOneLine) {
  convert({golden(), "packed", "--weights", "int4"});
  expect_refused({"convert", golden(), "no", "--weights", "int3"}, {"--weights int3", "int4a"});
  expect_refused({"convert", golden(), "no", "--weights", "int4", "--verify"}, {"--verify", "eval"});
  expect_refused({"convert", golden(), "no", "--weights", "int4", "--to", "huggingface"},
                 {"--to huggingface"});
  expect_refused({"convert", "packed", "no", "--weights", "int8"}, {"int4 already"});
  expect_refused({"convert", "packed", "no"}, {"int4", "Hugging Face folder cannot hold"});
  expect_refused({"generate", "packed", "tokenizer_type=byte", "weight_format=int8"},
                 {"weight_format=int8", "int4 already"});
  expect_refused(Arguments{"train", "load_parameters_path=packed"} + tiny_model(),
                 {"packed", "layers.0.moe.wi_0 is int4, which a weight [4,16,16] cannot be"});
}

TEST_F(WeightFormat, OneWrongByteIsFound) {
  convert({golden(), "packed", "--weights", "int4"});
  std::string bytes = read("packed/weights-00001.safetensors");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write("packed/weights-00001.safetensors", bytes);
  const Finished done = run({"generate", "packed", "tokenizer_type=byte", "prompt=a"});
  EXPECT_EQ(done.status, 2);
  EXPECT_NE(done.err.find("hash is not the manifest's: damaged"), std::string::npos) << done.err;
}

}  // namespace
}  // namespace switchyard::cli_test
