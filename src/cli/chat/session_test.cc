// A conversation with a backend of the test's own; messages of several lines; streams that are cut anywhere.
#include "cli/chat/session.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "cli/chat/input.h"
#include "core/error.h"
#include "serve/http/server.h"

namespace switchyard {
namespace {

ChatJson delta_event(ChatJson delta) {
  ChatJson choice{{"index", 0}, {"delta", std::move(delta)}, {"finish_reason", nullptr}};
  return {{"choices", ChatJson::array({std::move(choice)})}};
}

ChatJson call_part(std::size_t index, const std::string& name, const std::string& arguments) {
  ChatJson function{{"arguments", arguments}};
  if (!name.empty()) function["name"] = name;
  ChatJson part{{"index", index}, {"function", function}};
  if (!name.empty()) part["id"] = "call_" + name;
  return delta_event({{"tool_calls", ChatJson::array({part})}});
}

// Gives the next of its answers, and keeps what it was asked.
class FakeChat : public ChatBackend {
 public:
  void ask(const ChatJson& body, const std::function<void(const ChatJson& event)>& on_event,
           const std::function<bool()>& goes_on) override {
    asked.push_back(body);
    if (answers.empty()) fail_runtime("[chat] nobody answers");
    const std::vector<ChatJson> events = answers.front();
    answers.erase(answers.begin());
    for (const ChatJson& event : events) {
      on_event(event);
      if (!goes_on()) return;
    }
    if (finishes) on_event(ChatJson::parse(R"({"choices": [{"delta": {}, "finish_reason": "stop"}]})"));
  }
  AnsweringModel model(const std::string&) override { return {}; }
  std::string problem_of(const ChatJson& fields) override {
    return fields.contains("cache_salt") ? "cache_salt: not here" : "";
  }
  std::int64_t count_tokens(const ChatJson& body) override { return std::ssize(body["messages"]) * 10; }

  std::vector<std::vector<ChatJson>> answers;
  std::vector<ChatJson> asked;
  bool finishes = true;
};

class ChatSessionTest : public ::testing::Test {
 protected:
  ChatSession session() {
    return {
        backend,
        settings,
        {[this](std::string_view text) { out += text; }, [this](std::string_view text) { notes += text; }},
        [this] { return --events_left != 0; }};
  }
  void will_say(const std::string& text) {
    backend.answers.push_back(
        {delta_event({{"role", "assistant"}, {"content", ""}}), delta_event({{"content", text}})});
  }

  FakeChat backend;
  ChatSession::Settings settings;
  std::string out, notes;
  int events_left = 0;  // 1: the person ends the answer after the next event; 0: never
};

TEST_F(ChatSessionTest, SendsTheConversationAndKeepsAnswers) {
  settings.fields["temperature"] = 0.5;
  settings.system = "Be brief.";
  ChatSession chat = session();
  will_say("one");
  will_say("two");
  EXPECT_TRUE(chat.take("first"));
  EXPECT_TRUE(chat.take("second"));
  EXPECT_TRUE(chat.take("  "));  // nothing is asked
  EXPECT_EQ(out, "one\ntwo\n");
  EXPECT_EQ(notes, "");
  ASSERT_EQ(backend.asked.size(), 2u);
  EXPECT_EQ(backend.asked[1]["messages"],
            ChatJson::parse(R"([{"role":"system","content":"Be brief."},{"role":"user","content":"first"},
              {"role":"assistant","content":"one"},{"role":"user","content":"second"}])"));
  EXPECT_EQ(backend.asked[1]["temperature"], 0.5);
  EXPECT_EQ(backend.asked[1]["stream"], true);
  EXPECT_FALSE(chat.has_failed());
  EXPECT_FALSE(chat.take("/quit"));
}

TEST_F(ChatSessionTest, EscapesControlCharactersOfTheModel) {
  EXPECT_EQ(shown_text("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(shown_text("\033[31m\a\r\x7f"), "\\x1b[31m\\x07\\x0d\\x7f");
  EXPECT_EQ(shown_text("\xc2\x9b"
                       "2J\xc2\x80\xc2\x85"),
            "\\x9b2J\\x80\\x85");  // C1
  EXPECT_EQ(shown_text("\xc2\xa0\xc3\x9b\xe2\x82\xac"), "\xc2\xa0\xc3\x9b\xe2\x82\xac");
  EXPECT_EQ(shown_text(std::string_view("\0", 1)), "\\x00");
  ChatSession chat = session();
  will_say("\033]0;title\a");
  backend.answers.push_back({call_part(0, "f\033[2J", "{\"a\": \"\xc2\x9b\"}")});
  backend.answers.push_back({ChatJson{{"error", {{"message", "bad \033[1m"}}}}});
  for (const char* message : {"one", "two", "three"}) chat.take(message);
  EXPECT_EQ(out, "\\x1b]0;title\\x07\n[calls f\\x1b[2J({\"a\": \"\\x9b\"})]\n");
  EXPECT_EQ(notes, "error: bad \\x1b[1m\n");
  EXPECT_EQ(chat.messages()[1]["content"], "\033]0;title\a");  // kept as the model said it
}

TEST_F(ChatSessionTest, ShowsHidesOrFoldsReasoning) {
  const std::vector<ChatJson> answer{delta_event({{"reasoning_content", "so "}}),
                                     delta_event({{"reasoning_content", "it is"}}),
                                     delta_event({{"content", "Yes."}})};
  struct Case {
    ShownReasoning reasoning;
    bool is_terminal;
    std::string out, note;
  };
  const std::vector<Case> cases{{ShownReasoning::show, true, "\033[90mso it is\033[0m\n\nYes.\n", ""},
                                {ShownReasoning::hide, true, "Yes.\n", ""},
                                {ShownReasoning::fold, true, "Yes.\n", "(reasoning …)\n"},
                                {ShownReasoning::show, false, "Yes.\n", ""},
                                {ShownReasoning::fold, false, "Yes.\n", ""}};
  for (const Case& one : cases) {
    settings.reasoning = one.reasoning;
    settings.is_terminal = one.is_terminal;
    out = notes = "";
    backend.answers = {answer};
    backend.answers[0].push_back(ChatJson::parse(R"({"choices": [{"delta": {}, "finish_reason": "stop"}]})"));
    ChatSession chat = session();
    chat.take("Is it?");
    EXPECT_EQ(out, one.out);
    EXPECT_TRUE(notes.starts_with(one.note)) << notes;
    EXPECT_EQ(notes.find("tokens") != std::string::npos, one.is_terminal);
    EXPECT_EQ(chat.messages()[1]["reasoning_content"], "so it is");
  }
}

TEST_F(ChatSessionTest, ShowsCallsAndKeepsThem) {
  ChatSession chat = session();
  backend.answers = {{delta_event({{"content", "I add."}}), call_part(0, "add", "{\"a\": "),
                      call_part(0, "", "1}"), call_part(1, "weather", "{}")}};
  chat.take("go");
  EXPECT_EQ(out, "I add.\n[calls add({\"a\": 1})]\n[calls weather({})]\n");
  const ChatJson calls = chat.messages()[1]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0],
            ChatJson::parse(
                R"({"id":"call_add","type":"function","function":{"name":"add","arguments":"{\"a\": 1}"}})"));
}

TEST_F(ChatSessionTest, RepairsWhatIsNotUtf8) {
  ChatSession chat = session();
  will_say("one");
  chat.take("caf\xe9");
  EXPECT_EQ(backend.asked[0]["messages"][0]["content"], "caf\xef\xbf\xbd");
}

TEST_F(ChatSessionTest, AgainAndUndo) {
  ChatSession chat = session();
  EXPECT_TRUE(chat.take("/again"));
  EXPECT_EQ(notes, "there is no message yet\n");
  for (const char* answer : {"one", "two", "three"}) will_say(answer);
  chat.take("first");
  chat.take("second");
  chat.take("/again");
  EXPECT_EQ(backend.asked[2], backend.asked[1]);
  EXPECT_EQ(chat.messages().back()["content"], "three");
  chat.take("/undo");
  ASSERT_EQ(chat.messages().size(), 2u);
  EXPECT_EQ(chat.messages().back()["content"], "one");
  backend.answers.push_back({ChatJson{{"error", {{"message", "no"}}}}});
  chat.take("/again");  // an error leaves the answer that was there
  EXPECT_EQ(chat.messages().back()["content"], "one");
  chat.take("/undo");
  chat.take("/undo");
  EXPECT_TRUE(chat.messages().empty());
}

TEST_F(ChatSessionTest, AnErrorDropsTheMessage) {
  ChatSession chat = session();
  backend.answers.push_back({delta_event({{"content", "half"}}), ChatJson{{"error", {{"message", "lost"}}}}});
  chat.take("first");
  EXPECT_EQ(notes, "error: lost\n");
  EXPECT_EQ(out, "half\n");
  EXPECT_TRUE(chat.messages().empty());
  EXPECT_TRUE(chat.has_failed());
  EXPECT_THROW(chat.take("nobody"), Error);
  settings.may_try_again = true;
  ChatSession patient = session();
  will_say("one");
  patient.take("first");
  notes = "";
  EXPECT_TRUE(patient.take("nobody"));
  EXPECT_EQ(notes, "error: [chat] nobody answers\n");
  EXPECT_EQ(patient.messages().size(), 2u);
}

TEST_F(ChatSessionTest, AnAnswerWithoutItsEndIsAnError) {
  ChatSession chat = session();
  backend.finishes = false;
  for (const bool has_text : {true, false}) {
    notes = "";
    backend.answers.push_back({});
    if (has_text) backend.answers[0].push_back(delta_event({{"content", "half an ans"}}));
    chat.take("first");
    EXPECT_EQ(notes, "error: the answer ended without a finish_reason\n");
    EXPECT_TRUE(chat.messages().empty());
  }
  EXPECT_EQ(out, "half an ans\n");
  EXPECT_TRUE(chat.has_failed());
}

// A server that sends these bytes as the stream of an answer, and then ends the connection.
std::string problem_of_stream(const std::string& bytes) {
  http::Server server({}, {{"POST", "/v1/chat/completions", [&](http::Request&) {
                              return http::Response{200, bytes, "text/event-stream"};
                            }}});
  server.start();
  std::string problem;
  remote_chat(fmt::format("http://127.0.0.1:{}", server.port()), "")
      ->ask(
          {{"model", "m"}, {"messages", ChatJson::array()}},
          [&](const ChatJson& event) {
            if (event.contains("error")) problem = event["error"]["message"];
          },
          [] { return true; });
  return problem;
}

// The model of a server that lists `models`.
AnsweringModel model_of_server(const std::string& models, const std::string& named) {
  http::Server server({}, {{"GET", "/v1/models", [&](http::Request&) {
                              return http::Response{200, models};
                            }}});
  server.start();
  return remote_chat(fmt::format("http://127.0.0.1:{}", server.port()), "")->model(named);
}

TEST(RemoteChatTest, AsksForTheModel) {
  const std::string list = R"({"data": [{"id": "a", "max_model_len": 100},
      {"id": "b", "meta": {"context_length": 7, "chat_template": false}}]})";
  const AnsweringModel first = model_of_server(list, ""), named = model_of_server(list, "b");
  EXPECT_EQ(first.name, "a");
  EXPECT_EQ(first.context, 100);
  EXPECT_TRUE(first.chats);
  EXPECT_EQ(named.name, "b");
  EXPECT_EQ(named.context, 7);
  EXPECT_FALSE(named.chats);
  EXPECT_EQ(model_of_server(list, "alias").name, "alias");
  for (const char* broken : {"", "{}", "[1]", R"({"data": [{"id": 5}]})"})
    EXPECT_THROW(model_of_server(broken, ""), Error) << broken;
}

TEST(RemoteChatTest, StreamsWithoutTheirEndAreErrors) {
  const std::string event =
      "data: {\"choices\": [{\"index\": 0, \"delta\": {}, \"finish_reason\": \"stop\"}]}\n\n";
  EXPECT_EQ(problem_of_stream(event + "data: [DONE]\n\n"), "");
  for (const std::string& cut :
       {std::string(), event, event.substr(0, 40), event + "data: [DO",
        event.substr(0, 40) + "\n\ndata: [DONE]\n\n", std::string("{\"choices\": []}")})
    EXPECT_NE(problem_of_stream(cut).find("ended before the answer did"), std::string::npos) << cut;
}

TEST_F(ChatSessionTest, KeepsAnEndedAnswerAsFarAsItCame) {
  settings.is_terminal = true;
  events_left = 2;
  ChatSession chat = session();
  backend.answers = {{delta_event({{"content", "one "}}), delta_event({{"content", "two "}}),
                      delta_event({{"content", "three"}})}};
  chat.take("count");
  EXPECT_EQ(out, "one two \n");
  EXPECT_EQ(chat.messages().back()["content"], "one two ");
  EXPECT_NE(notes.find("ended here"), std::string::npos) << notes;
}

TEST_F(ChatSessionTest, Commands) {
  std::string folder = (std::filesystem::path(::testing::TempDir()) / "switchyard_chat.XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ChatSession chat = session();
  will_say("one");
  chat.take("/system Be brief.");
  chat.take("/set temperature=0.25");
  chat.take("/set chat_template_kwargs={\"enable_thinking\": false}");
  chat.take("/set reasoning_effort=low");
  chat.take("first");
  EXPECT_EQ(backend.asked[0]["temperature"], 0.25);
  EXPECT_EQ(backend.asked[0]["chat_template_kwargs"]["enable_thinking"], false);
  EXPECT_EQ(backend.asked[0]["reasoning_effort"], "low");
  EXPECT_EQ(backend.asked[0]["messages"][0]["role"], "system");
  chat.take("/tokens");
  EXPECT_EQ(notes, "30 tokens\n");
  chat.take("/save " + folder + "/talk.json");
  chat.take("/clear");
  chat.take("/system");
  chat.take("/set temperature=");
  EXPECT_TRUE(chat.messages().empty());
  chat.take("/load " + folder + "/talk.json");
  EXPECT_EQ(chat.messages().size(), 2u);
  will_say("two");
  chat.take("second");
  EXPECT_EQ(backend.asked[1]["messages"][0]["content"], "Be brief.");
  EXPECT_FALSE(backend.asked[1].contains("temperature"));
  EXPECT_FALSE(chat.has_failed());
  notes = "";
  chat.take("/help");
  EXPECT_NE(notes.find("/again"), std::string::npos);
  std::ofstream(folder + "/broken.json") << "[{\"role\": 1}]";
  for (const char* refused : {"/nothing", "/set x", "/save", "/load nowhere", "/save /nowhere/x"}) {
    notes = "";
    EXPECT_TRUE(chat.take(refused));
    EXPECT_EQ(std::count(notes.begin(), notes.end(), '\n'), 1) << refused << notes;
  }
  chat.take("/load " + folder + "/broken.json");
  EXPECT_EQ(chat.messages().size(), 4u);
  EXPECT_TRUE(chat.has_failed());
  std::filesystem::remove_all(folder);
}

TEST_F(ChatSessionTest, AWrongSettingChangesNothing) {
  ChatSession chat = session();
  chat.take("/set temperature=0.25");
  for (const char* wrong : {"/set bogus=1", "/set temperature=warm", "/set temperature=-1",
                            "/set max_tokens=0", "/set messages=[]", "/set cache_salt=x"}) {
    notes = "";
    chat.take(wrong);
    EXPECT_EQ(std::count(notes.begin(), notes.end(), '\n'), 1) << wrong << notes;
  }
  EXPECT_TRUE(chat.has_failed());
  will_say("one");
  chat.take("first");
  EXPECT_EQ(backend.asked[0]["temperature"], 0.25);
  EXPECT_EQ(backend.asked[0].size(), 4u) << backend.asked[0];  // messages, stream, stream_options
}

TEST_F(ChatSessionTest, AModelWithoutATemplateGoesOnFromEachLine) {
  settings.completes = true;
  ChatSession chat = session();
  const auto will_add = [&](const std::string& text) {
    backend.answers.push_back({ChatJson::parse(R"({"choices": [{"text": "", "finish_reason": null}]})")});
    backend.answers.back()[0]["choices"][0]["text"] = text;
  };
  for (const char* text : {" one", " two", " three"}) will_add(text);
  for (const char* line : {"first", "second", "/again"}) chat.take(line);
  EXPECT_EQ(out, " one\n two\n three\n");
  ASSERT_EQ(backend.asked.size(), 3u);
  EXPECT_EQ(backend.asked[0]["prompt"], "first");
  EXPECT_EQ(backend.asked[1]["prompt"], "second");
  EXPECT_EQ(backend.asked[2], backend.asked[1]);
  EXPECT_FALSE(backend.asked[0].contains("messages"));
  EXPECT_FALSE(chat.has_failed());
  chat.take("/system Be brief.");
  EXPECT_NE(notes.find("no chat template"), std::string::npos) << notes;
  EXPECT_TRUE(chat.has_failed());
}

TEST(GreetingTest, NamesTheModel) {
  EXPECT_EQ(greeting_of({"small", 2048, true}), "small, 2048 tokens of context; /help lists the commands\n");
  EXPECT_EQ(greeting_of({"\033[m", 0, true}), "\\x1b[m; /help lists the commands\n");
  EXPECT_EQ(
      greeting_of({"base", 0, false}),
      "base; /help lists the commands\nthis model has no chat template: it goes on from what you type\n");
}

// The messages that lines make.
std::vector<std::string> messages_of(const std::vector<std::string>& lines) {
  MessageLines joined;
  std::vector<std::string> messages;
  for (const std::string& line : lines) {
    if (std::optional<std::string> message = joined.add(line)) messages.push_back(*message);
  }
  if (std::optional<std::string> rest = joined.finish()) messages.push_back(*rest);
  return messages;
}

TEST(MessageLinesTest, JoinsLines) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(messages_of({"one", "", "two"}), (Texts{"one", "", "two"}));
  EXPECT_EQ(messages_of({"one \\", "two\\", "three", "four"}), (Texts{"one \ntwo\nthree", "four"}));
  EXPECT_EQ(messages_of({"\"\"\"one", "two\\", "three\"\"\"", "four"}), (Texts{"one\ntwo\\\nthree", "four"}));
  EXPECT_EQ(messages_of({"\"\"\"", "one", "", "two", "\"\"\""}), (Texts{"one\n\ntwo"}));
  EXPECT_EQ(messages_of({"\"\"\"one\"\"\"", "two"}), (Texts{"one", "two"}));
  EXPECT_EQ(messages_of({"\"\"\"one\"\"\" and"}), (Texts{"one and"}));  // nothing typed is lost
  EXPECT_EQ(messages_of({"say \"\"\"this\"\"\""}), (Texts{"say \"\"\"this\"\"\""}));
  EXPECT_EQ(messages_of({"one\\", "\"\"\"two"}), (Texts{"one\n\"\"\"two"}));
  EXPECT_EQ(messages_of({"\"\"\"begun", "and left"}), (Texts{"begun\nand left\n"}));
  EXPECT_EQ(messages_of({"begun\\"}), (Texts{"begun\n"}));
  MessageLines lines;
  EXPECT_FALSE(lines.add("\"\"\"one"));
  EXPECT_TRUE(lines.has_begun());
  lines.forget();
  EXPECT_FALSE(lines.has_begun());
  EXPECT_EQ(lines.add("two"), "two");
}

TEST(EventReaderTest, ReadsEventsHoweverTheyAreCut) {
  const std::string stream =
      ": wait\n\ndata: {\"a\": 1}\n\ndata:{\"b\": \"\xe2\x82\xac\"}\r\n\r\nevent: x\ndata: {\"c\": "
      "[\"\\n\"]}\n\ndata: broken\n\ndata: [DONE]\n\n";
  const std::vector<ChatJson> want{{{"a", 1}}, {{"b", "\xe2\x82\xac"}}, {{"c", {"\n"}}}};
  for (std::size_t first = 0; first <= stream.size(); ++first) {
    for (const std::size_t length : {std::size_t{1}, std::size_t{7}, stream.size()}) {
      EventReader reader;
      std::vector<ChatJson> events;
      const auto keep = [&](const ChatJson& event) { events.push_back(event); };
      reader.add(std::string_view(stream).substr(0, first), keep);
      for (std::size_t at = first; at < stream.size(); at += length)
        reader.add(std::string_view(stream).substr(at, length), keep);
      ASSERT_EQ(events, want) << first << " " << length;
      EXPECT_FALSE(reader.is_whole());  // one event was no JSON
    }
  }
}

}  // namespace
}  // namespace switchyard
