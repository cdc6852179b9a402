// Text from stored weights, from the command line to the file.
#include "child.h"
#include "core/testing.h"

namespace switchyard::cli_test {
namespace {

using nlohmann::json;

class Generating : public ProgramTest {
 protected:
  json generate(const Arguments& arguments) {
    const Finished done = run(Arguments{"generate", "out/run", "--json", "g.json"} + arguments);
    EXPECT_EQ(done.status, 0) << done.err;
    json made = json::parse(read("g.json"));
    if (made["results"].size() == 1) {
      const std::string text =
          made["prompt"].get<std::string>() + made["results"][0]["text"].get<std::string>();
      // Bytes that are no UTF-8 are written as they are, and replaced in JSON.
      if (text.find("\xef\xbf\xbd") == std::string::npos) {
        EXPECT_EQ(done.out, text + "\n");
      }
    }
    return made;
  }
};

TEST_F(Generating, TheSameTextOnAnyMesh) {
  train_bytes();
  const Arguments how{"prompt= to ", "return_log_prob=true", "max_prefill_predict_length=4"};
  const json one = generate(how);
  EXPECT_EQ(one["prompt"], " to ");
  EXPECT_EQ(one["prompt_tokens"], json({32, 116, 111, 32}));
  const json& result = one["results"][0];
  EXPECT_TRUE(result["tokens"].size() == 20 || result["ended"] == true) << result;
  EXPECT_EQ(result["log_probs"].size(), result["tokens"].size());
  for (const char* key : {"prefill_seconds", "decode_seconds"}) EXPECT_GE(one[key].get<double>(), 0);
  for (const char* part : {"config", "device", "weights", "cache"})
    EXPECT_GT(one["startup_seconds"].value(part, -1.0), 0) << part;
  EXPECT_LE(one["load_seconds"], one["startup_seconds"]["weights"].get<double>() + 1e-3);
  EXPECT_EQ(one["decode_steps"], result["tokens"].size() - 1);
  for (const char* layout :
       {"ici_expert_parallelism=4", "ici_tensor_parallelism=2", "ici_fsdp_parallelism=4"}) {
    const json other = generate(how + Arguments{"ranks=4", layout, "ici_data_parallelism=-1"});
    EXPECT_EQ(other["results"][0]["tokens"], result["tokens"]) << layout;
  }
  const json in_pieces = generate(how + Arguments{"use_chunked_prefill=true", "prefill_chunk_size=3"});
  EXPECT_EQ(in_pieces["results"][0]["tokens"], result["tokens"]);
  const json plain = generate({"prompt= to ", "max_prefill_predict_length=4"});
  EXPECT_FALSE(plain["results"][0].contains("log_probs"));
}

// Folders are read block by block here, which `verify` does not do.
TEST_F(Generating, FromAFolderOfEveryFamily) {
  std::string marks;  // some of the models know few tokens
  for (int i = 0; i < 300; ++i) marks += static_cast<char>('!' + i * i % 13);
  write("text.txt", marks + "\n");
  std::size_t folders = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(kSourceFolder) + "/tests/golden/hf")) {
    const std::string folder = entry.path().string();
    SCOPED_TRACE(folder);
    ++folders;
    const auto text = [&](const Arguments& more) {
      const Finished done = run(Arguments{"generate", folder, "tokenizer_type=byte", "prompt=!#!#",
                                          "max_target_length=24", "dtype=float32"} +
                                more);
      EXPECT_EQ(done.status, 0) << done.err;
      return done.out;
    };
    const std::string plain = text({});
    EXPECT_EQ(text({"ngram_draft=3"}), plain);
    EXPECT_EQ(text({"ranks=2", "ici_tensor_parallelism=2"}), plain);
    const Finished scored = run({"eval", folder, "data_path=text.txt", "tokenizer_type=byte", "add_bos=false",
                                 "add_eos=false", "max_target_length=32"});
    EXPECT_EQ(scored.status, 0) << scored.err;
  }
  EXPECT_GT(folders, 12u);
}

TEST_F(Generating, RowsAndDraws) {
  train_bytes();
  const Arguments how{"decode_sampling_strategy=weighted", "per_device_batch_size=3", "prompt=a"};
  const json first = generate(how);
  ASSERT_EQ(first["results"].size(), 3u);
  EXPECT_NE(first["results"][0], first["results"][1]);
  EXPECT_EQ(generate(how)["results"], first["results"]);
  EXPECT_NE(generate(how + Arguments{"init_weights_seed=9"})["results"], first["results"]);
  const json cold = generate(how + Arguments{"decode_sampling_temperature=0"});
  EXPECT_EQ(cold["results"][0], cold["results"][2]);
  // A row's draws are its own: alone it is the same.
  const json alone = generate({"decode_sampling_strategy=weighted", "prompt=a"});
  EXPECT_EQ(alone["results"][0]["tokens"], first["results"][0]["tokens"]);
}

TEST_F(Generating, AssertsAndRandomWeights) {
  train_bytes();
  const std::string text = generate({"prompt=a"})["results"][0]["text"];
  if (text.find("\xef\xbf\xbd") == std::string::npos && !text.empty()) {
    EXPECT_EQ(run({"generate", "out/run", "prompt=a", "autoregressive_decode_assert=" + text}).status, 0);
  }
  const Finished other =
      run({"generate", "out/run", "prompt=a", "autoregressive_decode_assert=no such text"});
  EXPECT_EQ(other.status, 3);
  EXPECT_NE(other.err.find("autoregressive_decode_assert"), std::string::npos);
  const Finished random = run(Arguments{"generate"} + tiny_model() +
                              Arguments{"vocab_size=257", "tokenizer_type=byte", "prompt=a"});
  EXPECT_EQ(random.status, 0) << random.err;
  EXPECT_NE(random.err.find("random weights"), std::string::npos);
}

TEST_F(Generating, SampleAfterTraining) {
  write("text.txt", std::string(400, 'a') + " and some other letters, too. ");
  const Finished done =
      run(Arguments{"train"} + tiny_model() +
          Arguments{"vocab_size=257", "dataset_type=text", "data_path=text.txt", "tokenizer_type=byte",
                    "prompt=Some day ", "decode_sampling_strategy=greedy"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_NE(done.out.find("The model writes:\nSome day "), std::string::npos) << done.out;
}

// A folder's generation_config.json, also after its conversion, is as its keys on the command line.
TEST_F(Generating, AsTheFolderSays) {
  std::filesystem::copy(std::string(kSourceFolder) + "/tests/golden/hf/deepseek3-tiny", path("model"));
  const auto made = [&](const std::string& folder, const Arguments& more) {
    const Finished done = run(Arguments{"generate", folder, "tokenizer_type=byte", "prompt=ab",
                                        "max_target_length=40", "--json", "g.json"} +
                              more);
    EXPECT_EQ(done.status, 0) << done.err;
    return json::parse(read("g.json"))["results"][0];
  };
  const json greedy = made("model", {}),
             drawn = made("model", {"decode_sampling_strategy=topk", "decode_sampling_top_k=30",
                                    "decode_sampling_temperature=1.5", "decode_repetition_penalty=1.3",
                                    "decode_sampling_min_p=0.01"});
  EXPECT_NE(drawn["tokens"], greedy["tokens"]);
  EXPECT_NE(made("model", {"decode_logit_bias=[[65, 100]]"})["tokens"], greedy["tokens"]);
  json generation{
      {"do_sample", true}, {"top_k", 30}, {"temperature", 1.5}, {"repetition_penalty", 1.3}, {"min_p", 0.01}};
  write("model/generation_config.json", generation.dump());
  EXPECT_EQ(made("model", {})["tokens"], drawn["tokens"]);
  EXPECT_EQ(made("model", {"decode_sampling_temperature=0", "decode_repetition_penalty=1"})["tokens"],
            greedy["tokens"]);
  generation["eos_token_id"] = {5000, drawn["tokens"][7]};
  write("model/generation_config.json", generation.dump());
  const json ended = made("model", {});
  EXPECT_EQ(ended["ended"], true);
  EXPECT_LE(ended["tokens"].size(), 8u);
  EXPECT_EQ(ended["tokens"].back(), drawn["tokens"][7]);
  const Finished converted = run({"convert", "model", "ours"});
  EXPECT_EQ(converted.status, 0) << converted.err;
  EXPECT_EQ(made("ours", {"weight_dtype=float32", "dtype=float32"})["ended"], true);
  write("model/generation_config.json", R"({"temperature": "hot"})");
  expect_refused({"generate", "model", "tokenizer_type=byte"},
                 {"generation_config.json", "temperature", "a number"});
}

// A GGUF file's ends, also of its checkpoint, and a word on texts that are longer than those it was trained
// on.
TEST_F(Generating, EndsAsAGgufFileSays) {
  const std::string model = std::string(kSourceFolder) + "/tests/golden/gguf_small/ends.gguf";
  EXPECT_EQ(run({"convert", model, "ours"}).status, 0);
  for (const std::string& folder : {model, std::string("ours")}) {
    const Finished turn = run({"generate", folder, "prompt=a", "max_target_length=9"});
    EXPECT_EQ(turn.out, "abc\n") << turn.err;
    EXPECT_EQ(turn.err.find("trained for"), std::string::npos) << turn.err;
    EXPECT_EQ(run({"generate", folder, "prompt=m", "max_target_length=9"}).out, "mn\n");
  }
  const Finished beyond =
      run({"generate", model, "prompt=a", "max_target_length=300", "max_prefill_predict_length=8"});
  EXPECT_NE(beyond.err.find("max_target_length=300"), std::string::npos) << beyond.err;
  EXPECT_NE(beyond.err.find("256 tokens of context"), std::string::npos) << beyond.err;
}

// A model that learned what comes after next guesses it, and writes the same in fewer calls.
TEST_F(Generating, WithDrafts) {
  write("text.txt", std::string(400, 'a') + " and some other letters, too. ");
  train({"vocab_size=257", "dataset_type=text", "data_path=text.txt", "tokenizer_type=byte",
         "enable_checkpointing=true", "steps=40", "learning_rate=0.03", "max_target_length=24",
         "mtp_num_layers=1"});
  const auto made = [&](const Arguments& more) {
    const Finished done = run(
        Arguments{"generate", "out/run", "prompt=aaa", "max_target_length=24", "--json", "g.json"} + more);
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_EQ(done.err.find("drafts accepted") != std::string::npos, !more.empty()) << done.err;
    return json::parse(read("g.json"));
  };
  const json plain = made({}), drafted = made({"mtp_draft=true"}),
             split = made({"mtp_draft=true", "ranks=2", "ici_expert_parallelism=2"});
  EXPECT_EQ(plain["drafted_tokens"], 0);
  for (const json& with : {drafted, split}) {
    EXPECT_EQ(with["results"][0]["tokens"], plain["results"][0]["tokens"]);
    EXPECT_GE(with["accepted_drafts"].get<int>(), 5);
    EXPECT_LE(with["accepted_drafts"].get<int>(), with["drafted_tokens"].get<int>());
    EXPECT_LT(with["decode_steps"].get<int>(), plain["decode_steps"].get<int>());
  }
  const auto refused = [&](const Arguments& arguments, const std::string& words) {
    const Finished done = run(arguments);
    EXPECT_EQ(done.status, 2);
    EXPECT_NE(done.err.find(words), std::string::npos) << done.err;
  };
  refused({"eval", "out/run", "data_path=text.txt", "mtp_draft=true"}, "[eval] mtp_draft=true");
  refused({"convert", "out/run", "exported"}, "mtp_num_layers=1: no Hugging Face form");
}

TEST_F(Generating, WordsOfRequests) {
  std::string letters;
  for (int i = 0; i < 60; ++i) letters += "abcdefgh";
  write("text.txt", letters);
  train({"vocab_size=257", "dataset_type=text", "data_path=text.txt", "tokenizer_type=byte",
         "enable_checkpointing=true", "steps=40", "learning_rate=0.03", "max_target_length=24"});
  const auto made = [&](const Arguments& more) {
    const Finished done = run(Arguments{"generate", "out/run", "prompt=aaa", "--json", "g.json"} + more);
    EXPECT_EQ(done.status, 0) << done.err;
    json result = json::parse(read("g.json"))["results"][0];
    result["out"] = done.out;
    return result;
  };
  const json words = made({"temperature=0.8", "seed=5", "max_tokens=9"}),
             keys = made({"decode_sampling_strategy=weighted", "decode_sampling_temperature=0.8",
                          "init_weights_seed=5", "max_target_length=12"});
  EXPECT_EQ(words["tokens"].size(), 9u);
  EXPECT_EQ(words["tokens"], keys["tokens"]);
  EXPECT_NE(made({"temperature=9", "seed=6", "max_tokens=9"})["tokens"],
            made({"temperature=9", "seed=5", "max_tokens=9"})["tokens"]);
  EXPECT_EQ(made({"max_tokens=40"})["tokens"].size(), 40u);  // new ones, whatever max_target_length is
  const json greedy = made({"max_tokens=9"});
  const std::string text = greedy["text"], stop = text.substr(4, 2);
  const json ended = made({"max_tokens=9", "stop=" + stop});
  EXPECT_EQ(ended["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(ended["out"], "aaa" + text.substr(0, text.find(stop)) + "\n");
  EXPECT_EQ(ended["ended"], true);
  const Finished refused = run({"generate", "out/run", "max_tokens=9", "prompt=aaa", "max_target_length=8"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("max_tokens=9: expected at most max_target_length=8"), std::string::npos)
      << refused.err;
}

TEST_F(Generating, Refused) {
  const Arguments tiny = Arguments{"generate"} + tiny_model() + Arguments{"vocab_size=257"};
  const auto refused = [&](const Arguments& more, const std::vector<std::string>& words) {
    expect_refused(tiny + more, words);
  };
  refused({}, {"tokenizer_path", "tokenizer_type=byte"});
  const Arguments bytes{"tokenizer_type=byte"};
  refused(bytes + Arguments{"prompt="}, {"prompt", "none"});
  refused(bytes + Arguments{"mtp_draft=true"}, {"mtp_draft=true", "no prediction layers"});
  refused(bytes + Arguments{"ngram_draft=4", "mtp_draft=true", "mtp_num_layers=1"},
          {"ngram_draft=4", "mtp_draft=true", "one of them"});
  refused(bytes + Arguments{"mtp_draft_tokens=2"}, {"mtp_draft_tokens=2", "mtp_draft=true"});
  refused(bytes + Arguments{"prompt=longer than that"}, {"max_target_length=8", "16"});
  refused(bytes + Arguments{"prompt=abc", "max_prefill_predict_length=2"},
          {"prompt", "3", "max_prefill_predict_length=2"});
  refused(bytes + Arguments{"prompt=abc", "max_prefill_predict_length=8"}, {"max_target_length=8"});
  refused(bytes + Arguments{"decode_sampling_strategy=topk"}, {"decode_sampling_top_k", "got 0"});
  // Before it trains, not when it is to write its sample.
  expect_no_training({"decode_sampling_strategy=topk"}, {"decode_sampling_top_k", "got 0"});
  refused(bytes + Arguments{"decode_sampling_strategy=nucleus"}, {"decode_sampling_nucleus_p", "-1"});
  refused(bytes + Arguments{"decode_sampling_strategy=best"}, {"greedy", "composite", "best"});
  refused(bytes + Arguments{"decode_sampling_min_p=1.5"}, {"decode_sampling_min_p", "1.5"});
  refused(bytes + Arguments{"decode_repetition_penalty=0"}, {"decode_repetition_penalty", "0.01"});
  refused(bytes + Arguments{"prompt=a", "decode_logit_bias=[[257, 1]]"}, {"decode_logit_bias", "257"});
  refused(bytes + Arguments{"prompt=a", "decode_end_tokens=[-1]"}, {"decode_end_tokens", "-1"});
  refused(bytes + Arguments{"vocab_size=50", "prompt=a"}, {"97", "vocab_size=50"});
  refused(bytes + Arguments{"load_parameters_path=nowhere", "prompt=a"}, {"nowhere"});
  refused(bytes + Arguments{"--json", "no/such/folder/g.json"}, {"no/such/folder"});
  expect_refused({"generate", "."}, {"the folder of a run", "enable_checkpointing=true"});
  expect_refused({"generate", "out.yml"}, {"out.yml"});
}

}  // namespace
}  // namespace switchyard::cli_test
