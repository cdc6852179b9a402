// The terminal's chat through a pipe: with a model of its own, and over a server.
#include "child.h"
#include "cli/chat/session.h"

namespace switchyard::cli_test {
namespace {

using nlohmann::json;

// A template that needs few tokens: the tiny model reads 24.
constexpr const char* kTemplate =
    "{% for message in messages %}{% if message.role == 'system' %}{{ '=' + message.content }}{% elif "
    "message.role == "
    "'user' %}{{ '?' + message.content }}{% else %}{{ '!' }}{% endif %}{% endfor %}{{ '!' if "
    "add_generation_prompt }}";

class Chatting : public ProgramTest {
 protected:
  // Runs the chat with `lines` as its standard input.
  Finished chat(const std::string& lines, const Arguments& arguments) const {
    write("typed.txt", lines);
    return execute("sh", Arguments{"-c", "exec \"$0\" chat \"$@\" < typed.txt", program()} + arguments);
  }
  void make_model() const {
    train_bytes();
    write("template.jinja", kTemplate);
  }
  static Arguments of_model() {
    return {"out/run", "chat_template_path=template.jinja", "decode_sampling_strategy=greedy"};
  }
};

TEST_F(Chatting, AnswersEachLineOfAPipe) {
  make_model();
  const Finished one = chat("a\n", of_model());
  ASSERT_EQ(one.status, 0) << one.err;
  EXPECT_TRUE(one.out.ends_with("\n")) << one.out;
  EXPECT_EQ(one.out.find('\033'), std::string::npos) << one.out;
  const Finished again = chat("/set max_tokens=2\na\n/clear\na\n/again\n/quit\nnever\n", of_model());
  ASSERT_EQ(again.status, 0) << again.err;
  const std::size_t half = again.out.size() / 3;  // three times the same answer
  EXPECT_EQ(again.out, again.out.substr(0, half) + again.out.substr(0, half) + again.out.substr(0, half));
}

TEST_F(Chatting, Commands) {
  make_model();
  const Finished talk = chat(
      "/set max_tokens=1\n/system b\na\\\nb\n/save talk.json\n/undo\n/save empty.json\n/load "
      "talk.json\n/tokens\n/help\n",
      of_model());
  EXPECT_EQ(talk.status, 0) << talk.err;
  const json saved = json::parse(read("talk.json"));
  ASSERT_EQ(saved.size(), 3u);
  EXPECT_EQ(saved[0], (json{{"role", "system"}, {"content", "b"}}));
  EXPECT_EQ(saved[1]["content"], "a\nb");
  EXPECT_EQ(json::parse(read("empty.json")).size(), 1u);                  // the system's text
  EXPECT_NE(talk.err.find("8 tokens\n"), std::string::npos) << talk.err;  // =b?a\nb!!
  EXPECT_NE(talk.err.find("/again"), std::string::npos) << talk.err;
  EXPECT_EQ(talk.out.find("/again"), std::string::npos) << talk.out;
  EXPECT_EQ(chat("/nothing\n", of_model()).status, 1);
}

TEST_F(Chatting, AnErrorGivesTheStatus) {
  make_model();
  const Finished refused =
      chat("/set temperature=-1\n/set n=2\n/set tool_choice=5\n/set max_tokens=1\na\n", of_model());
  EXPECT_EQ(refused.status, 1);
  EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 4)
      << refused.err;  // and the weights' line
  EXPECT_NE(refused.err.find("\n[chat] temperature: expected"), std::string::npos) << refused.err;
  EXPECT_NE(refused.out, "");                                                   // the message was answered
  EXPECT_EQ(chat("a\n" + std::string(200, 'a') + "\n", of_model()).status, 1);  // too long
}

// A model without a chat template completes. The same words give the same text everywhere.
TEST_F(Chatting, WordsMeanTheSameWhereTheyStand) {
  train_bytes();
  const Arguments words{"temperature=0.9", "top_k=50", "seed=7", "max_tokens=6", "frequency_penalty=0.5"};
  const Finished made = run(Arguments{"generate", "out/run", "prompt=ab", "--json", "g.json"} + words);
  ASSERT_EQ(made.status, 0) << made.err;
  const json result = json::parse(read("g.json"))["results"][0];
  EXPECT_EQ(result["tokens"].size(), 6u);
  const Finished greedy =
      run({"generate", "out/run", "prompt=ab", "--json", "greedy.json", "max_tokens=6", "temperature=0"});
  ASSERT_EQ(greedy.status, 0) << greedy.err;
  EXPECT_NE(json::parse(read("greedy.json"))["results"][0]["tokens"], result["tokens"]);
  const Finished local = chat("ab\nab\n", Arguments{"out/run"} + words);
  ASSERT_EQ(local.status, 0) << local.err;
  EXPECT_EQ(local.out.substr(0, local.out.size() / 2), local.out.substr(local.out.size() / 2));
  EXPECT_EQ(shown_text(result["text"].get<std::string>()) + "\n", local.out.substr(0, local.out.size() / 2));
  const pid_t server = start(Arguments{"serve", "out/run", "--port", "0", "--json", "where.json"} + words);
  const json place = when_written("where.json");
  ASSERT_TRUE(place.contains("port"));
  const Arguments url{"--url", "http://127.0.0.1:" + std::to_string(place["port"].get<int>())};
  EXPECT_EQ(chat("ab\nab\n", url).out, local.out);
  EXPECT_EQ(chat("ab\nab\n", url + words).out, local.out);
  const Finished refused = chat("ab\n", url + Arguments{"system=b"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("[chat] system: run has no chat template"), std::string::npos) << refused.err;
  ::kill(server, SIGTERM);
  ::waitpid(server, nullptr, 0);
}

TEST_F(Chatting, SamplesUnlessToldOtherwise) {
  train_bytes();
  const std::string lines = "a\n/again\n";
  const auto halves_differ = [&](const Arguments& more) {
    const Finished two = chat(lines, Arguments{"out/run", "max_tokens=16"} + more);
    EXPECT_EQ(two.status, 0) << two.err;
    return two.out.substr(0, two.out.size() / 2) != two.out.substr(two.out.size() / 2);
  };
  EXPECT_TRUE(halves_differ({}));
  EXPECT_FALSE(halves_differ({"temperature=0"}));
  EXPECT_FALSE(halves_differ({"decode_sampling_strategy=greedy"}));
  EXPECT_FALSE(halves_differ({"seed=3"}));
}

TEST_F(Chatting, OverAServer) {
  make_model();
  const pid_t server =
      start(Arguments{"serve"} + of_model() + Arguments{"--port", "0", "--json", "where.json"});
  const json place = when_written("where.json");
  ASSERT_TRUE(place.contains("port"));
  const Arguments url{"--url", "http://127.0.0.1:" + std::to_string(place["port"].get<int>())};
  const std::string lines = "/set max_tokens=4\na\n";
  const Finished remote = chat(lines, url + Arguments{"temperature=0"}), local = chat(lines, of_model());
  EXPECT_EQ(remote.status, 0) << remote.err;
  EXPECT_EQ(remote.err, "");
  EXPECT_EQ(remote.out, local.out);
  EXPECT_EQ(chat("a\n/tokens\n", url + Arguments{"max_tokens=1"}).err, "4 tokens\n");  // ?a!!
  const Finished refused = chat("a\n", url + Arguments{"cache_salt=5"});  // which the server says
  EXPECT_EQ(refused.status, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_TRUE(refused.err.starts_with("error: ")) << refused.err;
  EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
  ::kill(server, SIGTERM);
  ::waitpid(server, nullptr, 0);
  const Finished gone = chat("", url);  // nothing was asked yet
  EXPECT_EQ(gone.status, 1);
  EXPECT_TRUE(gone.err.starts_with("switchyard: [chat] http://127.0.0.1:")) << gone.err;
  EXPECT_EQ(std::count(gone.err.begin(), gone.err.end(), '\n'), 1) << gone.err;
}

TEST_F(Chatting, RefusesWhatItCannotChatWith) {
  expect_refused({"chat", "nowhere"}, {"nowhere"});
  expect_refused({"chat", "--url", "ftp://somewhere"}, {"--url", "http://HOST:PORT"});
  expect_refused({"chat", "--url", "http://127.0.0.1:1", "greedy"}, {"key=value", "greedy"});
  expect_refused({"chat", "nowhere", "reasoning=loud"}, {"show, hide or fold", "loud"});
  expect_refused({"chat", "--url", "http://127.0.0.1:1", "temperature=-1"}, {"temperature", "0 to 100"});
  expect_refused({"chat", "--url", "http://127.0.0.1:1", "bogus=1"}, {"unknown field bogus"});
  expect_refused({"chat", "nowhere", "temperature=-1"}, {"temperature", "0 to 100"});
  train_bytes();
  const Finished refused = chat("a\n", {"out/run", "system=b"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("[chat] system: run has no chat template"), std::string::npos) << refused.err;
}

}  // namespace
}  // namespace switchyard::cli_test
