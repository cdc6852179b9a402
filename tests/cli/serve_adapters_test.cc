// A server's adapters and weights: several at once, loaded, dropped and replaced while it runs.
#include <future>

#include "child.h"
#include "serve/http/testing.h"

namespace switchyard::cli_test {
namespace {

using nlohmann::json;

class ServedAdapters : public ProgramTest {
 protected:
  ServedAdapters() {
    train_bytes();
    std::filesystem::rename(path("out/run"), path("out/base"));
    // Adapters whose B is not 0, with unlike ranks and targets.
    adapter("small", {"lora_rank=2", "lora_alpha=20"});
    adapter("large", {"lora_rank=5", "lora_alpha=40", "lora_target=experts"});
    adapter("third", {"lora_rank=3", "lora_alpha=60", "lora_target=attention"});
  }
  ~ServedAdapters() override {
    if (server_ > 0) {
      EXPECT_EQ(end(), 0);
    }
  }

  void adapter(const std::string& name, const Arguments& keys) const {
    train(Arguments{"vocab_size=257", "dataset_type=text", "data_path=text.txt", "tokenizer_type=byte",
                    "enable_checkpointing=true", "steps=1", "max_target_length=24", "run_name=" + name,
                    "load_parameters_path=out/base", "lora_init=test"} +
          keys);
  }

  void serve(const Arguments& keys) {
    std::filesystem::remove(path("where.json"));
    server_ = start(Arguments{"serve", "out/base", "--port", "0", "--json", "where.json", "--api-key", "k",
                              "--adapter-folder", "out", "--weights-folder", "out"} +
                    keys);
    port_ = when_written("where.json")["port"];
  }
  int end() {
    ::kill(server_, SIGTERM);
    int state = 0;
    ::waitpid(server_, &state, 0);
    server_ = 0;
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  }

  json post(const std::string& where, const json& body, int status = 200) const {
    const auto answer = http::Client(port_).request("POST", where, kKey, body.dump());
    EXPECT_EQ(answer.status, status) << where << body << answer.body;
    return json::parse(answer.body, nullptr, false);
  }
  json complete(const std::string& model, const std::string& prompt = kPrompt, int most = 12) const {
    return post(
        "/v1/completions",
        {{"model", model}, {"prompt", prompt}, {"max_tokens", most}, {"temperature", 1}, {"seed", 7}});
  }
  std::string text_of(const std::string& model) const { return complete(model)["choices"][0]["text"]; }
  // A refusal: one line that has the words.
  void refused(const std::string& where, const json& body, int status, const std::string& words) const {
    const json error = post(where, body, status)["error"];
    const std::string message = error["message"];
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }

  // Returns the text that `generate` makes of the prompt.
  std::string generated(const Arguments& keys) const {
    const Finished made =
        run(Arguments{"generate", "out/base", std::string("prompt=") + kPrompt, "max_target_length=16",
                      "--json", "g.json", "decode_sampling_strategy=weighted", "init_weights_seed=7"} +
            keys);
    EXPECT_EQ(made.status, 0) << made.err;
    return json::parse(read("g.json"))["results"][0]["text"];
  }

  static constexpr const char *kPrompt = " to ", *kKey = "Authorization: Bearer k\r\n";
  pid_t server_ = 0;
  int port_ = 0;
};

TEST_F(ServedAdapters, OfUnlikeRanksInOneBatch) {
  const std::map<std::string, std::string> expected{{"base", generated({})},
                                                    {"a", generated({"adapter=out/small"})},
                                                    {"b", generated({"adapter=out/large"})},
                                                    {"c", generated({"adapter=out/third"})}};
  // Each checkpoint has a folder of PEFT in it.
  EXPECT_EQ(generated({"adapter=out/small/checkpoints/1/adapter"}), expected.at("a"));
  EXPECT_NE(expected.at("a"), expected.at("base"));
  EXPECT_NE(expected.at("b"), expected.at("base"));
  for (const Arguments& layout : {Arguments{}, Arguments{"ranks=4", "ici_expert_parallelism=4"},
                                  Arguments{"ranks=2", "ici_tensor_parallelism=2"}}) {
    serve(Arguments{"adapter=a=out/small,b=out/large,c=out/third"} + layout);
    std::vector<std::pair<std::string, std::future<std::string>>> texts;
    for (int i = 0; i < 2; ++i) {
      for (const auto& [name, text] : expected)
        texts.emplace_back(name, std::async(std::launch::async, [this, of = name] { return text_of(of); }));
    }
    for (auto& [name, text] : texts) EXPECT_EQ(text.get(), expected.at(name)) << name;
    const auto listed = json::parse(http::Client(port_).request("GET", "/v1/models", kKey).body)["data"];
    ASSERT_EQ(listed.size(), 4u);
    EXPECT_EQ(listed[0]["id"], "base");
    EXPECT_EQ(listed[2]["parent"], "base");
    EXPECT_EQ(end(), 0);
  }
}

TEST_F(ServedAdapters, AreLoadedAndDropped) {
  const std::string base = generated({}), small = generated({"adapter=out/small"}),
                    large = generated({"adapter=out/large"});
  serve({"lora_slots=1"});
  refused("/v1/completions", {{"model", "a"}, {"prompt", "x"}}, 404, "expected base, got");
  const json loaded = post("/v1/load_lora_adapter", {{"lora_name", "a"}, {"lora_path", "out/small"}});
  EXPECT_EQ(text_of("a"), small);
  const json answer = complete("a");
  EXPECT_EQ(answer["system_fingerprint"], loaded["system_fingerprint"]);
  EXPECT_EQ(answer["model"], "a");
  EXPECT_NE(complete("base")["system_fingerprint"], loaded["system_fingerprint"]);
  EXPECT_EQ(text_of("base"), base);

  refused("/v1/load_lora_adapter", {{"lora_name", "a"}, {"lora_path", "out/large"}}, 400, "a is loaded");
  refused("/v1/load_lora_adapter", {{"lora_name", "b"}, {"lora_path", "out/large"}}, 400, "lora_slots");
  refused("/v1/load_lora_adapter", {{"lora_name", "base"}, {"lora_path", "out/large"}}, 400, "base");
  refused("/v1/load_lora_adapter", {{"lora_name", "b"}, {"lora_path", "/etc"}}, 400, "not below");
  refused("/v1/load_lora_adapter", {{"lora_name", "b"}, {"lora_path", "out/../../x"}}, 400, "not below");
  refused("/v1/load_lora_adapter", {{"lora_name", "b"}}, 400, "lora_path");
  refused("/v1/unload_lora_adapter", {{"lora_name", "b"}}, 404, "b");

  post("/v1/unload_lora_adapter", {{"lora_name", "a"}});
  refused("/v1/completions", {{"model", "a"}, {"prompt", "x"}}, 404, "expected base");
  refused("/v1/load_lora_adapter", {{"lora_name", "a"}, {"lora_path", "out/base"}}, 400, "whole model");
  post("/v1/load_lora_adapter", {{"lora_name", "a"}, {"lora_path", "out/large"}});
  EXPECT_EQ(text_of("a"), large);
  EXPECT_EQ(text_of("base"), base);
  const auto without = http::Client(port_).post("/v1/load_lora_adapter", "{}");
  EXPECT_EQ(without.status, 401) << without.body;
}

// A text begins with what was cached by its own adapter alone, and not by one that had its name before.
TEST_F(ServedAdapters, ShareNoPrefixes) {
  serve({"adapter=a=out/small,b=out/large"});
  const auto all_cached = [&] {
    const std::string metrics = http::Client(port_).get("/metrics").body,
                      name = "\nswitchyard_shared_tokens_total ";
    return std::stod(metrics.substr(metrics.find(name) + name.size()));
  };
  const auto cached = [&](const std::string& model) {
    const double before = all_cached();
    complete(model, "a prompt of many tokens", 1);
    return all_cached() - before;
  };
  EXPECT_EQ(cached("a"), 0);
  EXPECT_EQ(cached("b"), 0);
  EXPECT_EQ(cached("base"), 0);
  EXPECT_GT(cached("a"), 0);
  EXPECT_GT(cached("b"), 0);
  post("/v1/load_lora_adapter", {{"lora_name", "a"}, {"lora_path", "out/third"}, {"load_inplace", true}});
  EXPECT_EQ(cached("a"), 0);
  EXPECT_GT(cached("b"), 0);
  EXPECT_GT(cached("base"), 0);
}

TEST_F(ServedAdapters, NewWeights) {
  train({"vocab_size=257", "dataset_type=text", "data_path=text.txt", "tokenizer_type=byte",
         "enable_checkpointing=true", "steps=3", "learning_rate=0.1", "max_target_length=24", "run_name=next",
         "load_parameters_path=out/base"});
  const std::string base = generated({}), small = generated({"adapter=out/small"});
  const Finished made = run({"generate", "out/next", std::string("prompt=") + kPrompt, "max_target_length=16",
                             "--json", "g.json", "decode_sampling_strategy=weighted", "init_weights_seed=7"});
  ASSERT_EQ(made.status, 0) << made.err;
  const std::string next = json::parse(read("g.json"))["results"][0]["text"];
  ASSERT_NE(next, base);
  for (const Arguments& layout : {Arguments{}, Arguments{"ranks=2", "ici_expert_parallelism=2"}}) {
    serve(layout);
    EXPECT_EQ(text_of("base"), base);
    const json before = complete("base");
    for (const char* const mode : {"finish", "continue", "abort"}) {
      const json now = post("/v1/weights", {{"path", "out/next"}, {"mode", mode}});
      EXPECT_EQ(text_of("base"), next) << mode;
      const json after = complete("base");
      EXPECT_EQ(after["system_fingerprint"], now["system_fingerprint"]);
      EXPECT_NE(after["system_fingerprint"], before["system_fingerprint"]);
      EXPECT_FALSE(now["hash"].get<std::string>().empty());
      post("/v1/weights", {{"path", "out/base"}, {"mode", mode}});
      EXPECT_EQ(text_of("base"), base) << mode;
      EXPECT_EQ(complete("base")["system_fingerprint"], before["system_fingerprint"]);
    }
    EXPECT_EQ(end(), 0);
  }

  // Damaged or unfit weights leave those that are there.
  serve({});
  std::filesystem::copy(path("out/next"), path("out/cut"), std::filesystem::copy_options::recursive);
  for (const auto& file : std::filesystem::recursive_directory_iterator(path("out/cut"))) {
    if (file.path().filename().string().starts_with("weights-"))
      std::filesystem::resize_file(file.path(), std::filesystem::file_size(file.path()) - 100);
  }
  train({"enable_checkpointing=true", "steps=1", "run_name=other"});
  refused("/v1/weights", {{"path", "out/cut"}}, 400, "out/cut");
  refused("/v1/weights", {{"path", "out/other"}}, 400, "out/other");
  refused("/v1/weights", {{"path", "out/none"}}, 400, "out/none");
  refused("/v1/weights", {{"path", "/etc"}}, 400, "not below");
  refused("/v1/weights", {{"path", "out/small"}}, 400, "name");
  refused("/v1/weights", {{"path", "out/next"}, {"mode", "later"}}, 400, "finish, continue or abort");
  EXPECT_EQ(text_of("base"), base);
  EXPECT_EQ(end(), 0);

  // The adapter of all texts, and one by its name.
  serve({"adapter=out/small"});
  EXPECT_EQ(text_of("base"), small);
  post("/v1/weights", {{"path", "out/large"}});
  EXPECT_EQ(text_of("base"), generated({"adapter=out/large"}));
  EXPECT_EQ(end(), 0);
  serve({"adapter=a=out/large"});
  post("/v1/weights", {{"path", "out/small"}});
  EXPECT_EQ(text_of("a"), small);
  EXPECT_EQ(text_of("base"), base);
}

// A text that is being made ends, goes on, or is cut, as was asked.
TEST_F(ServedAdapters, TextsThatRun) {
  train({"vocab_size=257", "dataset_type=text", "data_path=text.txt", "tokenizer_type=byte",
         "enable_checkpointing=true", "steps=3", "learning_rate=0.1", "max_target_length=24", "run_name=next",
         "load_parameters_path=out/base"});
  serve({"max_target_length=20000"});
  for (const std::string mode : {"finish", "continue", "abort"}) {
    const std::int64_t most = mode == "finish" ? 300 : 1500;
    auto text = std::async(std::launch::async, [&] {
      return post("/v1/completions", {{"prompt", "a"}, {"max_tokens", most}, {"ignore_eos", true}});
    });
    while (http::Client(port_).get("/metrics").body.find("switchyard_texts_running 1") == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    post("/v1/weights", {{"path", "out/next"}, {"mode", mode}});
    const json answer = text.get();
    const std::int64_t made = answer["usage"]["completion_tokens"];
    EXPECT_EQ(answer["choices"][0]["finish_reason"], mode == "abort" ? "abort" : "length") << mode;
    if (mode == "abort") {
      EXPECT_LT(made, most);
    } else {
      EXPECT_EQ(made, most);
    }
  }
}

TEST_F(ServedAdapters, AreRefusedInOneLine) {
  std::filesystem::rename(path("out"), path("runs"));
  const auto refused_start = [&](const Arguments& arguments, const std::vector<std::string>& words) {
    expect_refused(Arguments{"serve", "runs/base", "--port", "0"} + arguments, words);
  };
  refused_start({"adapter=a=runs/small,a=runs/large"}, {"adapter", "twice"});
  refused_start({"adapter=a=runs/small,runs/large"}, {"NAME=FOLDER"});
  refused_start({"adapter=base=runs/small"}, {"base"});
  refused_start({"adapter=a=runs/small,b=runs/large", "lora_slots=1"}, {"lora_slots=1"});
  refused_start({"adapter=a=runs/none"}, {"runs/none"});
  refused_start({"adapter=a=runs/small", "sparse_matmul=false"}, {"sparse_matmul"});
  refused_start({"--adapter-folder", "runs"}, {"--adapter-folder", "key"});
  expect_refused({"generate", "runs/base", "adapter=a=runs/small", "prompt=x"}, {"only `serve`"});
}

}  // namespace
}  // namespace switchyard::cli_test
