// switchyard tokenize and switchyard data, and training from what the latter made.
#include <chrono>
#include <cstdlib>
#include <map>
#include <random>

#include "child.h"
#include "core/testing.h"

namespace switchyard::cli_test {
namespace {

using nlohmann::json;

class DataProgram : public ProgramTest {
 protected:
  static std::string golden(const std::string& name) {
    return std::string(kSourceFolder) + "/tests/golden/tokenizer/" + name;
  }
  // Runs `switchyard ARGUMENTS < input`.
  Finished pipe(const std::string& arguments, const std::string& input) const {
    write("input", input);
    return execute("sh", {"-c", "'" + program() + "' " + arguments + " < input"});
  }
  void write_texts() const {
    std::string lines;
    for (int i = 0; i < 300; ++i) lines += R"({"text":"line number )" + std::to_string(i * 7919) + "\"}\n";
    write("texts/a.jsonl", lines);
    write("texts/b.txt", "some more text\n");
  }
};

TEST_F(DataProgram, TokenizesLinesAndBack) {
  const json cases = json::parse(std::ifstream(golden("cases.json")));
  for (const char* name : {"llama3", "sp_bpe", "tiktoken", "unigram", "bert"}) {
    SCOPED_TRACE(name);
    const json& c = cases.at(name);
    std::string texts, ids, back;
    for (const json& row : c["texts"]) {
      texts += row[0].dump() + "\n";
      ids += row[1].dump() + "\n";
      back += row[2].dump() + "\n";
    }
    const std::string tokenizer = "tokenize " + golden(c["file"]);
    const Finished encoded = pipe(tokenizer + " --json-lines", texts);
    EXPECT_EQ(encoded.status, 0) << encoded.err;
    EXPECT_EQ(encoded.out, ids);
    EXPECT_EQ(pipe(tokenizer + " --json-lines --decode", ids).out, back);
  }
  EXPECT_EQ(pipe("tokenize byte", "ab\n\nc").out, "[97,98]\n[]\n[99]\n");
  EXPECT_EQ(pipe("tokenize byte --decode", "[97,98]\n").out, "ab\n");
}

TEST_F(DataProgram, TokenizeNamesWhatIsWrong) {
  expect_refused({"tokenize"}, {"expected one TOKENIZER"});
  expect_refused({"tokenize", "absent.model"}, {"absent.model", "no such file"});
  const Finished lines = pipe("tokenize byte --json-lines", "\"a\"\nb\n");
  EXPECT_EQ(lines.status, 2);
  EXPECT_EQ(lines.out, "[97]\n");
  EXPECT_NE(lines.err.find("line 2: expected a JSON string"), std::string::npos) << lines.err;
  EXPECT_NE(pipe("tokenize byte --decode", "[1,99999999999]\n").err.find("line 1: expected a list of ids"),
            std::string::npos);
  const Finished unknown = pipe("tokenize byte --decode", "[97]\n[1,999]\n");
  EXPECT_EQ(unknown.status, 2);
  EXPECT_NE(unknown.err.find("line 2: expected ids from 0 to 256, got 999"), std::string::npos)
      << unknown.err;
}

TEST_F(DataProgram, BuildsShowsAndTrains) {
  write_texts();
  const Arguments build{"data",
                        "build",
                        "data_path=texts",
                        "tokenizer_type=huggingface",
                        "tokenizer_path=" + golden("llama3.json"),
                        "--shard-tokens",
                        "1000"};
  const Finished built = run(build + Arguments{"--out", "tokens"});
  ASSERT_EQ(built.status, 0) << built.err;
  EXPECT_NE(built.out.find("dataset_type=tokenized data_path=tokens"), std::string::npos) << built.out;
  const Finished shown = run({"data", "show", "tokens", "--json", "shown.json"});
  EXPECT_EQ(shown.status, 0) << shown.err;
  const json report = json::parse(read("shown.json"));
  EXPECT_GT(report["train"]["shards"].size(), 1u);
  EXPECT_EQ(report["train"]["documents"].get<int>() + report["eval"]["documents"].get<int>(), 301);
  EXPECT_TRUE(report["train"]["shards"][0]["proved"]);

  const Arguments keys{"dataset_type=tokenized", "data_path=tokens", "vocab_size=600", "eval_interval=2"};
  const auto lines = train(keys);
  EXPECT_EQ(lines.size(), 3u);
  EXPECT_TRUE(lines[1].contains("eval/loss"));
  std::filesystem::remove_all(path("out"));
  const auto mixed = train(keys + Arguments{"data_path=tokens:tokens", "data_mixture_weights=0.5,0.5"});
  EXPECT_TRUE(mixed[1].contains("eval/loss"));
  std::filesystem::remove_all(path("out"));
  expect_no_training(keys + Arguments{"vocab_size=100"}, {"vocab_size=100", "the data set has"});
  expect_no_training(keys + Arguments{"tokenizer_type=huggingface", "tokenizer_path=" + golden("gpt2.json")},
                     {"gpt2.json", "not the tokenizer"});
  expect_no_training(keys + Arguments{"data_path=texts"}, {"data_path=texts", "no dataset.json"});
}

// What `train use_sft=true` makes of conversations, and that files that are none are refused.
TEST_F(DataProgram, ShowsConversations) {
  const std::string lora = std::string(kSourceFolder) + "/tests/golden/lora/";
  for (const char* name : {"sft-chat", "sft-text"}) {
    const std::string folder = lora + name;
    const json expected = json::parse(std::ifstream(folder + "/expected.json"));
    const Finished shown =
        run({"data", "show", folder + "/data.jsonl", "tokenizer_path=" + folder,
             "chat_template_path=" + folder + "/chat_template.jinja",
             "max_target_length=" + expected["max_target_length"].dump(), "--json", "shown.json"});
    ASSERT_EQ(shown.status, 0) << shown.err;
    EXPECT_NE(shown.out.find("⟦"), std::string::npos) << shown.out;
    const json report = json::parse(read("shown.json"));
    EXPECT_EQ(report["packed"], expected["packed"]);
    for (std::size_t i = 0; i < expected["documents"].size(); ++i) {
      for (const char* field : {"line", "text", "tokens", "mask", "kept", "dropped"})
        EXPECT_EQ(report["documents"][i][field], expected["documents"][i][field]) << name << " " << i;
    }
  }
  for (const json& bad : json::parse(std::ifstream(lora + "bad/bad.json"))) {
    const std::string folder = lora + bad["base"].get<std::string>() + "/";
    const std::string file = bad["name"].get<std::string>() + ".jsonl";
    expect_refused({"data", "show", lora + "bad/data/" + file, "tokenizer_path=" + folder,
                    "chat_template_path=" + folder + bad.value("template", "chat_template.jinja"),
                    "max_target_length=64"},
                   bad["says"].get<std::vector<std::string>>());
  }
  expect_refused({"data", "build", "data_path=texts", "use_sft=true", "--out", "tokens"}, {"use_sft"});
}

// The targets of a step are those of its rows, and a run that was ended goes on to the same numbers.
TEST_F(DataProgram, TrainsOnConversations) {
  const std::string folder = std::string(kSourceFolder) + "/tests/golden/lora/sft-chat";
  const Arguments keys{"use_sft=true",
                       "data_path=" + folder + "/data.jsonl",
                       "tokenizer_type=huggingface",
                       "tokenizer_path=" + folder,
                       "chat_template_path=" + folder + "/chat_template.jinja",
                       "vocab_size=360",
                       "max_target_length=64",
                       "per_device_batch_size=4",
                       "num_epoch=2",
                       "learning_rate_schedule_steps=8"};
  const auto whole = train(keys + Arguments{"steps=8"});
  ASSERT_EQ(whole.size(), 4u);
  const auto targets = [&](std::size_t step) { return whole[step]["learning/total_weights"].get<double>(); };
  EXPECT_EQ(targets(0) + targets(1), 145);
  EXPECT_EQ(targets(2) + targets(3), 145);
  std::filesystem::remove_all(path("out"));
  train(keys + Arguments{"steps=1", "enable_checkpointing=true"});
  const auto resumed = train(keys + Arguments{"steps=8", "enable_checkpointing=true"});
  ASSERT_EQ(resumed.size(), 4u);
  for (std::size_t step = 0; step < 4; ++step)
    EXPECT_EQ(resumed[step]["learning/loss"], whole[step]["learning/loss"]) << step;
  std::filesystem::remove_all(path("out"));
  expect_no_training(keys + Arguments{"use_truncation=false"}, {"use_truncation=false"});
  expect_no_training(keys + Arguments{"per_device_batch_size=9"}, {"8 rows of 64", "9"});
  expect_no_training(keys + Arguments{"max_target_length=4"}, {"max_target_length=4"});
}

// Killed at random moments and stopped by signals, a build ends with the bytes of one that nobody disturbed.
TEST_F(DataProgram, ABuildThatIsKilledGoesOn) {
  const bool soak = std::getenv("SWITCHYARD_SOAK") != nullptr;
  std::mt19937 random(23);
  for (int file = 0; file < (soak ? 8 : 3); ++file) {
    std::string text;
    while (text.size() < (12 << 20))
      text += "a line of " + std::to_string(random()) + (random() % 64 == 0 ? "\n\n" : "\n");
    write("texts/" + std::to_string(file) + ".txt", text);
  }
  const Arguments build{"data",    "build", "data_path=texts", "tokenizer_type=byte", "--shard-tokens",
                        "1500000", "--out"};
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(run(build + Arguments{"whole"}).status, 0);
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;
  const auto content = [&](const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path(folder)))
      files[entry.path().filename()] = read(folder + "/" + entry.path().filename().string());
    return files;
  };
  const auto expected = content("whole");
  for (int round = 0; round < (soak ? 20 : 1); ++round) {
    std::filesystem::remove_all(path("pieces"));
    for (int kill = 0; kill < 6; ++kill) {
      const pid_t child = start(build + Arguments{"pieces"});
      const double fraction = static_cast<double>(random() % 1000) * 1e-3;
      std::this_thread::sleep_for(whole * fraction);
      const bool politely = kill % 3 == 2;
      ::kill(child, politely ? SIGTERM : SIGKILL);
      int state = 0;
      ASSERT_EQ(::waitpid(child, &state, 0), child);
      if (WIFEXITED(state)) {
        EXPECT_TRUE(WEXITSTATUS(state) == 0 || WEXITSTATUS(state) == 75) << WEXITSTATUS(state);
        if (WEXITSTATUS(state) == 0) break;
      }
    }
    if (!std::filesystem::exists(path("pieces/dataset.json"))) {
      const Finished finished = run(build + Arguments{"pieces"});
      ASSERT_EQ(finished.status, 0) << finished.err;
    }
    EXPECT_TRUE(content("pieces") == expected) << "round " << round;
  }
}

// Each target is trained on num_epoch times, whatever the run is cut into.
TEST_F(DataProgram, ARunEndsWithItsDataOverRestartsAndMeshes) {
  std::string lines;
  double targets = 0;  // an end token follows each text
  for (int i = 0; i < 45; ++i) {
    const std::string text(static_cast<std::size_t>(1 + i * 7 % 30), static_cast<char>('a' + i % 26));
    lines += R"({"text":")" + text + "\"}\n";
    targets += static_cast<double>(text.size());
  }
  write("texts/a.jsonl", lines);
  const Arguments build{"data", "build", "data_path=texts", "tokenizer_type=byte", "eval_fraction=0",
                        "--out"};
  ASSERT_EQ(run(build + Arguments{"tokens"}).status, 0);
  const Arguments text{"dataset_type=text", "data_path=texts", "tokenizer_type=byte"},
      tokens{"dataset_type=tokenized", "data_path=tokens"};
  for (const Arguments& source : {text, tokens}) {
    for (const Arguments& rows :
         {Arguments{"packing=false", "use_truncation=false"}, Arguments{"max_segments_per_seq=2"}}) {
      SCOPED_TRACE(source[0] + " " + rows[0]);
      std::filesystem::remove_all(path("out"));
      const Arguments keys =
          source + rows + Arguments{"vocab_size=300", "num_epoch=2", "enable_checkpointing=true"};
      EXPECT_EQ(train(keys + Arguments{"steps=7"}).size(), 7u);
      const Arguments mesh{"steps=1000", "ranks=2", "ici_fsdp_parallelism=2", "per_device_batch_size=3"};
      const Finished ended = run(Arguments{"train"} + tiny_model() + keys + mesh);
      ASSERT_EQ(ended.status, 0) << ended.err;
      EXPECT_NE(ended.out.find("of 1000 steps: the data was gone through num_epoch=2 times"),
                std::string::npos)
          << ended.out;
      double seen = 0;
      for (const json& line : metrics()) seen += line["learning/total_weights"].get<double>();
      EXPECT_EQ(seen, 2 * targets);
      const Finished again = run(Arguments{"train"} + tiny_model() + keys + mesh);
      EXPECT_EQ(again.status, 0) << again.err;
      EXPECT_NE(again.out.find("has gone through the data num_epoch=2 times"), std::string::npos)
          << again.out;
    }
  }
}

TEST_F(DataProgram, RowsOfOneDocumentTrainAlikeOnAnyMesh) {
  write_texts();
  ASSERT_EQ(run({"data", "build", "data_path=texts", "tokenizer_type=byte", "eval_fraction=0.2", "--out",
                 "tokens/"})
                .status,
            0);
  const Arguments keys{"dataset_type=tokenized", "data_path=tokens",     "vocab_size=300",
                       "packing=false",          "max_target_length=32", "eval_interval=2"};
  const auto one = train(keys + Arguments{"per_device_batch_size=8", "gradient_accumulation_steps=2"});
  std::filesystem::remove_all(path("out"));
  const auto four = train(keys + Arguments{"ranks=4", "ici_fsdp_parallelism=2", "ici_expert_parallelism=2",
                                           "per_device_batch_size=4"});
  ASSERT_EQ(one.size(), four.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i]["learning/total_weights"], four[i]["learning/total_weights"]);
    for (const char* key : {"learning/loss", "learning/grad_norm", "eval/loss"}) {
      if (!one[i].contains(key)) continue;
      EXPECT_NEAR(one[i][key].get<double>(), four[i].at(key).get<double>(), 1e-4) << key << " " << i;
    }
  }
  EXPECT_TRUE(one[1].contains("eval/loss"));
  EXPECT_LT(one[0]["learning/total_weights"].get<double>(), 16 * 32);
  std::filesystem::remove_all(path("out"));
  expect_no_training(keys + Arguments{"data_path=tokens:tokens", "data_mixture_weights=1,1", "num_epoch=1"},
                     {"num_epoch=1", "data_mixture_weights"});
}

TEST_F(DataProgram, ShowNamesTheCorruptShard) {
  write_texts();
  ASSERT_EQ(run({"data", "build", "data_path=texts", "tokenizer_type=byte", "--out", "tokens"}).status, 0);
  std::string shard = read("tokens/train-00001.tokens");
  shard[shard.size() / 2] = static_cast<char>(shard[shard.size() / 2] ^ 4);
  write("tokens/train-00001.tokens", shard);
  expect_refused({"data", "show", "tokens"}, {"train-00001.tokens", "corrupt", "expected"}, 1);
}

TEST_F(DataProgram, BuildNamesWhatIsWrong) {
  write("lines.jsonl", "{\"text\":\"a\"}\n{\"txt\":\"b\"}\n");
  const Arguments build{"data", "build", "tokenizer_type=byte"};
  expect_refused(build, {"--out"});
  expect_refused(build + Arguments{"--out", "tokens"}, {"data_path"});
  const Arguments strictly = build + Arguments{"data_path=lines.jsonl", "records_without_text=refuse"};
  expect_refused(strictly + Arguments{"--out", "tokens"}, {"lines.jsonl:2", "\"text\""});
  expect_refused(strictly + Arguments{"--out", "tokens", "train_data_columns=txt"},
                 {"lines.jsonl:1", "\"txt\""});
  const Finished skipped = run(build + Arguments{"--out", "some", "data_path=lines.jsonl"});
  EXPECT_EQ(skipped.status, 0) << skipped.err;
  EXPECT_NE(skipped.err.find("skipped 1 records without a text"), std::string::npos) << skipped.err;
  expect_refused({"data", "build", "data_path=lines.jsonl", "--out", "tokens", "tokenizer_path=absent.model"},
                 {"absent.model"});
  expect_refused({"data", "list"}, {"expected build or show", "list"});
  expect_refused({"data", "build", "data_path=lines.jsonl", "--out", "absent/tokens"},
                 {"a folder that exists", "absent"});
}

}  // namespace
}  // namespace switchyard::cli_test
