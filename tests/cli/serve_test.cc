// A server from the command line: it says where it listens, answers, and ends when it is told to.
#include "child.h"
#include "serve/http/testing.h"

namespace switchyard::cli_test {
namespace {

using nlohmann::json;

class Serving : public ProgramTest {
 protected:
  static int end(pid_t child, int signal) {
    ::kill(child, signal);
    int state = 0;
    ::waitpid(child, &state, 0);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  }
};

TEST_F(Serving, FromARunToItsEnd) {
  train_bytes();
  const Finished made = run({"generate", "out/run", "prompt= to ", "max_target_length=16", "--json", "g.json",
                             "decode_sampling_strategy=weighted", "init_weights_seed=7"});
  ASSERT_EQ(made.status, 0) << made.err;
  const json want = json::parse(read("g.json"))["results"][0];
  for (const Arguments& layout : {Arguments{}, Arguments{"ranks=4", "ici_expert_parallelism=4"}}) {
    std::filesystem::remove(path("where.json"));
    const pid_t server = start(Arguments{"serve", "out/run", "--port", "0", "--json", "where.json"} + layout);
    const json place = when_written("where.json");
    ASSERT_TRUE(place.contains("port"));
    EXPECT_EQ(place["model"], "run");
    const http::Client client(place["port"]);
    const json request{{"prompt", " to "}, {"max_tokens", 12}, {"temperature", 1}, {"seed", 7}};
    const auto answer = client.post("/v1/completions", request.dump());
    EXPECT_EQ(answer.status, 200);
    if (answer.status == 200) {
      EXPECT_EQ(json::parse(answer.body)["choices"][0]["text"], want["text"]);
    }
    const Finished second = run({"serve", "out/run", "--port", std::to_string(place["port"].get<int>())});
    EXPECT_EQ(second.status, 2);
    EXPECT_NE(second.err.find("cannot listen"), std::string::npos) << second.err;
    EXPECT_EQ(end(server, SIGTERM), 0);
  }
}

TEST_F(Serving, RefusesWhatItCannotServe) {
  expect_refused({"serve", "--port", "70000"}, {"--port", "0 to 65535", "70000"});
  expect_refused({"serve", "--port"}, {"--port", "value"});
  expect_refused({"serve", "nowhere"}, {"nowhere"});
  expect_refused({"serve", std::string(kSourceFolder) + "/tests/golden/hf/qwen3next-tiny",
                  "tokenizer_type=byte", "enable_prefix_caching=true", "prompt_checkpoints=0"},
                 {"enable_prefix_caching=true", "gated delta nets"});
  const std::string tiny = std::string(kSourceFolder) + "/tests/golden/hf/deepseek3-tiny";
  expect_refused({"serve", tiny, "--api-key-file", "no-keys"}, {"no-keys", "a key a line"});
  expect_refused({"serve", tiny, "--api-key", ""}, {"--api-key", "empty"});
  expect_refused({"serve", tiny, "tokenizer_type=byte", "max_body=0"}, {"max_body"});
  expect_refused({"serve", tiny, "tokenizer_type=byte", "--port", "0", "tls_key=k.pem"},
                 {"both a certificate and its key"});
  expect_refused({"serve", "--hots", "x"}, {"--hots", "--host ADDRESS"});
}

}  // namespace
}  // namespace switchyard::cli_test
