// What is wrong with a command line, a config or a file is said in one line, before anything is written.
#include <sys/stat.h>

#include "child.h"

namespace switchyard::cli_test {
namespace {

namespace fs = std::filesystem;

using Refused = ProgramTest;

TEST_F(Refused, Commands) {
  expect_refused({"trian"}, {"trian", "nearest is train", "verify", "config"});
  expect_refused({"frobnicate", "--help"}, {"frobnicate", "train"});
  expect_refused({}, {"expected a command", "train"});
  expect_refused({"--frobnicate"}, {"--frobnicate"});
  expect_refused({"config", "--lists"}, {"--lists", "--list"});
}

TEST_F(Refused, KeysAndValues) {
  expect_no_training({"stepz=3"}, {"stepz", "steps"});
  expect_no_training({"xyzzyxyzzy=3"}, {"xyzzyxyzzy", "config --list"});
  expect_no_training({"steps=abc"}, {"steps", "integer", "abc"});
  expect_no_training({"steps=-2"}, {"steps", "-1", "-2"});
  expect_no_training({"steps=1.5"}, {"steps", "integer", "1.5"});
  expect_no_training({"steps"}, {"key=value", "steps"});
  expect_no_training({"=3"}, {"key=value", "=3"});
  expect_no_training({"learning_rate=nan"}, {"learning_rate", "number", "nan"});
  expect_no_training({"opt_type=adam"}, {"opt_type", "adamw, adam_pax, sgd, muon", "got adam"});
  expect_no_training({"sparse_matmul=maybe"}, {"sparse_matmul", "maybe"});
  expect_no_training({"per_device_batch_size=0"}, {"per_device_batch_size", "above 0", "got 0"});
  expect_no_training({"vocab_size=4000000000000"}, {"vocab_size", "2147483647"});
  expect_no_training({"init_weights_seed=4294967296"}, {"init_weights_seed", "4294967295"});
  expect_no_training({"steps=-1"}, {"steps=-1", "learning_rate_schedule_steps"});
}

// Names of other programs, options, spaces: the line says what to write.
TEST_F(Refused, WhatABeginnerTypes) {
  expect_no_training({"lr=1e-3"}, {"unknown key lr", "here it is learning_rate"});
  expect_no_training({"epochs=1"}, {"unknown key epochs", "steps", "num_epoch"});
  expect_no_training({"batch_size=32"}, {"batch_size=32 changes nothing", "set per_device_batch_size"});
  expect_no_training({"--steps", "10"}, {"expected key=value, got --steps", "write steps=10"});
  expect_no_training({"--steps=10"}, {"unknown key --steps", "write steps=10"});
  expect_no_training({"--learning-rate", "1e-3"}, {"write learning_rate=1e-3"});
  expect_no_training({"--lr", "1e-3"}, {"write learning_rate=1e-3"});
  expect_no_training({"steps", "10"}, {"expected key=value, got steps", "write steps=10"});
  expect_no_training({"steps", "=", "10"}, {"write steps=10"});
  expect_no_training({"steps", "=10"}, {"write steps=10"});
  expect_refused({"train", "--steps", "10"}, {"write steps=10"});
  expect_refused({"train", "steps", "10"}, {"expected key=value, got steps", "write steps=10"});
  for (const char* command : {"plan", "explain", "config", "generate", "serve", "eval", "chat"}) {
    expect_refused({command, "--steps", "10"}, {"--steps", "write steps=10"});
    expect_refused({command, "x.yml", "--batch-size=8"}, {"--batch-size=8", "write per_device_batch_size=8"});
  }
}

TEST_F(Refused, PathsThatAreMistyped) {
  write("configs/mine/small.yml", "steps: 1\n");
  for (const char* command : {"train", "plan", "explain", "config", "generate"}) {
    expect_refused({command, "configs/mine/smal.yml"},
                   {"no file configs/mine/smal.yml", "the nearest is configs/mine/small.yml"});
    expect_refused({command, "configs/exmaples/small-moe.yml"},
                   {"no file configs/exmaples/small-moe.yml", "the nearest is ", "/examples/small-moe.yml"});
    expect_refused({command, "config/base.yml"}, {"no file config/base.yml", "the nearest is "});
  }
}

TEST_F(Refused, AModelWhereAConfigIsMeantAndTheReverse) {
  std::filesystem::create_directory(path("empty"));
  for (const char* command : {"plan", "explain", "config", "train"})
    expect_refused({command, "empty"}, {"empty: expected CONFIG.yml or a Hugging Face folder"});
  write("download/model-Q4_K_M.gguf", "GGUF and more");
  for (const char* command : {"plan", "train", "generate", "serve", "chat"})
    expect_refused({command, "download"}, {"it holds a GGUF file, give that: download/model-Q4_K_M.gguf"});
  write("layout.gguf", "GGUF and more");
  expect_no_training({"custom_mesh_and_rule=./layout.gguf"}, {"layout.gguf: a GGUF file"});
  expect_no_training({"custom_mesh_and_rule=./download"}, {"download", "it is a folder"});
  expect_refused({"convert", "download", "out.gguf"}, {"out.gguf", "GGUF files are read, not written"});
  write("published/config.json", "{}");
  expect_refused({"verify", "published"}, {"io.safetensors", "switchyard eval published data_path=FILE"});
}

TEST_F(Refused, LinesStayLinesWhateverIsQuoted) {
  expect_no_training({"new\nkey=3"}, {"new key"});
  expect_no_training({"steps=1\n2"}, {"steps", "1 2"});
  expect_no_training({"load_parameters_path=a\n\x1b[31mb"}, {"a  [31mb"});
  expect_refused({"tr\nain"}, {"tr ain"});
}

TEST_F(Refused, WhatIsNotBuilt) {
  expect_no_training({"ici_sequence_parallelism=2", "ranks=2"},
                     {"ici_sequence_parallelism=2", "planned", "1"});
  expect_no_training({"quantization=int8"}, {"quantization=int8", "planned", "empty"});
  expect_no_training({"load_full_state_path=x"}, {"x: expected a checkpoint or the folder of a run"});
  expect_no_training({"dropout_rate=0.1"}, {"dropout_rate=0.1", "planned"});
}

TEST_F(Refused, FilesOfALayoutOrToInheritFrom) {
  write("dim.yml", "mesh_axes: [fsdp]\nlogical_axis_rules:\n  - [embed_atn, [fsdp]]\n");
  write("axis.yml", "mesh_axes: [fsdp]\nlogical_axis_rules:\n  - [embed_attn, [wings]]\n");
  write("axes.yml", "mesh_axes: [fsdp, wings]\n");
  for (const char* key : {"custom_mesh_and_rule=", "custom_mesh_and_rule_for_eval="}) {
    const std::string mesh = key;
    expect_no_training({mesh + "dim.yml"}, {"embed_atn", "the nearest is embed_attn", "dim.yml"});
    expect_no_training({mesh + "axis.yml"}, {"wings", "axis.yml"});
    expect_no_training({mesh + "axes.yml"}, {"mesh_axes", "wings"});
    expect_no_training({mesh + "absent.yml"}, {"there is no file absent.yml"});
  }
  write("child.yml", "base_config: absent.yml\n");
  write("round.yml", "base_config: round.yml\n");
  expect_refused({"train", "child.yml"}, {"child.yml", "base_config=absent.yml", "no such file"});
  expect_refused({"train", "round.yml"}, {"round.yml", "leads back"});
  expect_no_training({"emb_dim=64"}, {"emb_dim=64", "set base_emb_dim"});
}

TEST_F(Refused, Meshes) {
  expect_no_training({"ranks=8", "ici_expert_parallelism=3", "ici_fsdp_parallelism=1"},
                     {"ici_expert_parallelism=3", "ici_fsdp_parallelism=1", "8 ranks", "got 3"});
  expect_no_training({"ranks=8", "ici_expert_parallelism=-1", "ici_fsdp_parallelism=-1"},
                     {"at most one -1", "ici_expert_parallelism=-1", "ici_fsdp_parallelism=-1"});
  expect_no_training({"ranks=4", "num_experts=6", "ici_expert_parallelism=4"},
                     {"num_experts=6", "expert=4", "8"});
  expect_no_training({"ranks=0"}, {"ranks", "at least 1"});
  expect_no_training({"ranks=100000"}, {"ranks=100000", "1024"});
  expect_no_training({"mesh_axes=[data,north]"}, {"mesh_axes", "north", "ici_north_parallelism"});
}

TEST_F(Refused, Pipelines) {
  expect_no_training({"ranks=4", "ici_pipeline_parallelism=4"}, {"4 stages for 2 layers"});
  expect_no_training({"use_qk_clip=true"}, {"use_qk_clip=true", "attention_type=mla"});
  expect_no_training({"ranks=2", "ici_pipeline_parallelism=2", "num_pipeline_microbatches=3"},
                     {"num_pipeline_microbatches=3", "divisor", "rows"});
  const Arguments piped{"ranks=2", "ici_pipeline_parallelism=2", "base_num_decoder_layers=6"};
  expect_no_training(piped + Arguments{"num_pipeline_repeats=4"},
                     {"num_pipeline_repeats=4", "at most 3", "2 stages share 6 layers"});
  expect_no_training(piped + Arguments{"num_layers_per_pipeline_stage=2"},
                     {"num_layers_per_pipeline_stage=2", "equal blocks", "2 stages share 6 layers"});
  expect_no_training(piped + Arguments{"num_layers_per_pipeline_stage=1", "num_pipeline_repeats=2"},
                     {"num_layers_per_pipeline_stage=1", "num_pipeline_repeats=2"});
  expect_no_training(piped + Arguments{"pipeline_parallel_layers=4"},
                     {"pipeline_parallel_layers=4", "all 6 layers", "planned"});
  expect_refused(Arguments{"generate"} + tiny_model() + piped +
                     Arguments{"mtp_num_layers=1", "mtp_draft=true", "prompt=a", "tokenizer_type=byte",
                               "vocab_size=257"},
                 {"mtp_draft=true", "pipeline"});
}

TEST_F(Refused, ModelsThatDoNotFit) {
  expect_no_training({"num_moe_token_chunks=3"}, {"num_moe_token_chunks", "divide the 8 tokens", "got 3"});
  expect_no_training({"num_moe_emb_chunks=3"}, {"num_moe_emb_chunks", "divide the 16 columns", "got 3"});
  expect_no_training({"attention_output_dim=8"}, {"attention_output_dim=8", "qwen3_custom_moe"});
  expect_no_training({"moe_expert_input_dim=8"}, {"moe_expert_input_dim=8", "qwen3_custom_moe"});
  expect_no_training({"decoder_block=qwen3_custom_moe", "attention_output_dim=8"},
                     {"attention_output_dim=8", "moe_expert_input_dim=-1", "equal"});
  expect_no_training({"num_experts_per_tok=5"}, {"num_experts_per_tok=5", "num_experts=4"});
  expect_no_training({"base_num_kv_heads=3"}, {"base_num_query_heads=2", "base_num_kv_heads=3"});
  expect_no_training({"head_dim=7"}, {"head_dim=7", "even"});
  expect_no_training({"decoder_block=llama2"}, {"num_experts=4", "llama2"});
  expect_no_training({"first_num_dense_layers=3"}, {"first_num_dense_layers=3", "base_num_decoder_layers=2"});
  expect_no_training({"model_name=mixtral-8x7b"},
                     {"=16 differs from 4096 of models/mixtral-8x7b.yml", "override_model_config=true"});
  expect_no_training({"model_name=mixtral-8x8b"}, {"mixtral-8x8b", "mixtral-8x7b"});
  expect_no_training({"custom_mesh_and_rule=pure-fdsp"}, {"pure-fdsp", "pure-fsdp"});
}

TEST_F(Refused, Batches) {
  expect_no_training({"per_device_batch_size=0.5"}, {"per_device_batch_size=0.5", "1 rank ", "whole"});
  expect_no_training({"per_device_batch_size=1.5", "ranks=3"},
                     {"per_device_batch_size=1.5", "3 ranks", "4.5"});
}

TEST_F(Refused, ConfigFiles) {
  expect_refused({"train", "absent.yml"}, {"absent.yml"});
  expect_refused({"train", "."}, {"[train] .: expected CONFIG.yml or a Hugging Face folder"});
  write("broken.yml", "steps: [1\n");
  expect_refused({"train", "broken.yml"}, {"broken.yml", "YAML", "line"});
  write("list.yml", "- steps\n");
  expect_refused({"train", "list.yml"}, {"list.yml", "key: value"});
  write("twice.yml", "steps: 1\nsteps: 2\n");
  expect_refused({"train", "twice.yml"}, {"twice.yml", "steps twice"});
  write("unknown.yml", "stepz: 1\n");
  expect_refused({"train", "unknown.yml"}, {"unknown.yml", "stepz", "nearest known key is steps"});
  write("type.yml", "steps: {a: 1}\n");
  expect_refused({"train", "type.yml"}, {"type.yml", "steps", "integer"});
  write("binary.yml", std::string("\0\1\2\xff", 4));
  expect_refused({"train", "binary.yml"}, {"binary.yml"});
}

TEST_F(Refused, Text) {
  const Arguments text{"dataset_type=text", "tokenizer_type=byte", "vocab_size=257"};
  expect_no_training(text, {"data_path=FILE_OR_FOLDER"});
  expect_no_training(text + Arguments{"data_path=absent"}, {"data_path=absent", "no such file"});
  fs::create_directory(path("empty"));
  write("empty/.hidden", "some text");
  expect_no_training(text + Arguments{"data_path=empty"}, {"data_path=empty", "found none"});
  write("nothing.txt", "");
  expect_no_training(text + Arguments{"data_path=nothing.txt"}, {"no text in nothing.txt: it is empty"});
  write("small.txt", "short");
  expect_no_training(text + Arguments{"data_path=small.txt"}, {"small.txt", "tokens", "17", "2 rows of 8"});
  write("text.txt", std::string(5000, 'x'));
  expect_no_training(text + Arguments{"data_path=text.txt", "vocab_size=200"}, {"vocab_size=200", "257"});
  expect_no_training(text + Arguments{"data_path=text.txt", "tokenizer_type=huggingface"},
                     {"tokenizer_path"});
  expect_no_training(text + Arguments{"data_path=text.txt", "packing=false"},
                     {"text.txt", "1 documents", "at least 2"});
  expect_no_training(text + Arguments{"data_path=text.txt", "data_mixture_weights=0.5,0.5"},
                     {"2 weights", "1 parts"});
  expect_no_training(text + Arguments{"data_path=text.txt", "data_mixture_weights=-1"}, {"above 0", "-1"});
  expect_no_training({"data_mixture_weights=1"}, {"data_mixture_weights", "synthetic"});
}

// Random tokens where text was meant would look like a run that does not learn.
TEST_F(Refused, TextKeysWithRandomTokens) {
  expect_no_training({"data_path=text.txt", "dataset_type=synthetic"},
                     {"data_path=text.txt", "dataset_type=text", "synthetic"});
  expect_no_training({"eval_interval=2"}, {"eval_interval=2", "synthetic", "dataset_type=text"});
}

TEST_F(Refused, PlacesThatCannotBeWritten) {
  write("file", "");
  expect_no_training({"base_output_directory=file/below"},
                     {"file/below/run", "Not a directory", "base_output_directory"});
  expect_no_training({"metrics_file=absent/m.jsonl"}, {"metrics_file", "absent/m.jsonl", "No such file"});
  EXPECT_FALSE(fs::exists(path("absent")));
  fs::create_directory(path("folder"));
  expect_no_training({"metrics_file=folder"}, {"metrics_file", "folder", "Is a directory"});
  expect_no_training({"run_name=../run"}, {"run_name=../run", "base_output_directory"});
  // A folder that was there before stays.
  expect_no_training({"base_output_directory=folder", "metrics_file=absent/m.jsonl"}, {"absent/m.jsonl"});
  EXPECT_TRUE(fs::is_empty(path("folder")));
}

// A disk that is full is found at the first step: exit 1, and nothing looks like a finished run.
TEST_F(Refused, AFullDisk) {
  for (const std::string ranks : {"1", "4"}) {
    const Finished finished =
        run(Arguments{"train"} + tiny_model() + Arguments{"metrics_file=/dev/full", "ranks=" + ranks});
    EXPECT_EQ(finished.status, 1);
    EXPECT_NE(finished.err.find("/dev/full"), std::string::npos) << finished.err;
    EXPECT_NE(finished.err.find("No space left"), std::string::npos) << finished.err;
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
    EXPECT_FALSE(fs::exists(path("out/run/summary.json")));
    EXPECT_FALSE(fs::exists(path("out/run/metrics.jsonl")));
    EXPECT_TRUE(fs::is_empty(path("out/run/plots")));
  }
}

TEST_F(Refused, JsonInAMissingFolder) {
  for (const char* command : {"config", "plan", "explain", "inspect", "selftest", "generate"})
    expect_refused({command, "--json", "absent/out.json"},
                   {"--json absent/out.json", "a folder that can be written"});
  expect_refused({"verify", "case", "--json", "absent/out.json"}, {"--json absent/out.json"});
}

TEST_F(Refused, JsonOfCommandsThatWriteNone) {
  expect_refused({"tokenize", "byte", "--json", "out.json"}, {"unknown option --json"});
  expect_refused({"data", "build", "data_path=.", "--out", "tokens", "--json", "out.json"},
                 {"writes no JSON"});
}

// A table that went nowhere is no success.
TEST_F(Refused, OutputThatCannotBeWritten) {
  const std::string command = program() + " train --help >/dev/full 2>" + path("err");
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  std::ifstream err(path("err"));
  std::string line;
  std::getline(err, line);
  EXPECT_EQ(line, "switchyard: [output] standard output cannot be written");
}

// `--json` to a device or a pipe must not put a file in its place.
TEST_F(Refused, JsonToAPipe) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const int reader = ::open(path("pipe").c_str(), O_RDWR | O_NONBLOCK);  // so that the child finds a reader
  ASSERT_GE(reader, 0);
  ASSERT_GE(::fcntl(reader, F_SETPIPE_SZ, 1 << 20), 1 << 20);
  EXPECT_EQ(run({"config", "--json", "pipe", "steps=7"}).status, 0);
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
  std::string received(1 << 20, '\0');
  const ssize_t bytes = ::read(reader, received.data(), received.size());
  ::close(reader);
  ASSERT_GT(bytes, 0);
  received.resize(static_cast<std::size_t>(bytes));
  EXPECT_EQ(nlohmann::json::parse(received)["config"]["steps"], 7);
}

}  // namespace
}  // namespace switchyard::cli_test
