// Tests the public commands and the public server; python/tests/ compares them with the program.
#include "switchyard/commands.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/messages.h"
#include "core/testing.h"
#include "switchyard/engine.h"
#include "switchyard/server.h"

namespace switchyard {
namespace {

const std::string kModel = std::string(kSourceFolder) + "/tests/golden/hf/qwen3moe-tiny";

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Commands, ReportTextJsonAndNotes) {
  std::vector<std::string> told;
  const commands::Report plan = commands::plan({"model_name=deepseek3-tiny", "ranks=2"},
                                               [&](const std::string& note) { told.push_back(note); });
  EXPECT_EQ(nlohmann::json::parse(plan.json)["ranks"], 2);
  EXPECT_NE(plan.text.find("memory of a rank"), std::string::npos) << plan.text;
  EXPECT_EQ(plan.notes, told);
  const commands::Report doctor = commands::doctor({"--quick", "--require", "gpu"});
  EXPECT_EQ(doctor.notes.size(), static_cast<std::size_t>(doctor.status));
  EXPECT_EQ(commands::inspect({kModel, kModel}).status, 0);
}

TEST(Commands, RefuseInOneLine) {
  EXPECT_NE(refusal([] { commands::plan({"--help"}); }).find("--help"), std::string::npos);
  EXPECT_NE(refusal([] { commands::inspect({}); }).find("expected one path"), std::string::npos);
  EXPECT_NE(refusal([] { commands::convert({kModel}); }).find("SRC and DST"), std::string::npos);
  EXPECT_NE(refusal([] { commands::evaluate({"no-such"}); }).find("no-such"), std::string::npos);
}

TEST(Server, StartsAndCloses) {
  Server server = Server::start({kModel, "tokenizer_type=byte", "max_target_length=32", "--port", "0"});
  EXPECT_TRUE(server.url().starts_with("http://127.0.0.1:")) << server.url();
  EXPECT_FALSE(server.notes().empty());
  EXPECT_EQ(nlohmann::json::parse(server.stats())["running"], 0);
  server.close();
  server.close();
  EXPECT_EQ(nlohmann::json::parse(server.stats())["finished"], 0);
  EXPECT_NE(refusal([] { Server::start({kModel, "--help"}); }).find("--help"), std::string::npos);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_THROW(Server::start({kModel, "tokenizer_type=byte", "--port", "0"}, stop.get_token()), Error);
}

TEST(Engine, ChatNeedsATemplate) {
  Engine engine = Engine::open(Settings::parse({kModel, "tokenizer_type=byte"}));
  const std::string line =
      refusal([&] { engine.chat(R"({"messages": [{"role": "user", "content": "a"}]})"); });
  EXPECT_NE(line.find("no chat template"), std::string::npos) << line;
}

TEST(Messages, GoToTheHandler) {
  std::vector<std::string> lines;
  set_message_handler([&](const std::string& line) { lines.push_back(line); });
  say("two {}", "words");
  set_message_handler({});
  EXPECT_EQ(lines, std::vector<std::string>{"two words"});
}

}  // namespace
}  // namespace switchyard
