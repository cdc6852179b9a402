// Answers of chats in OpenAI's form and in Anthropic's: streams join to the whole answer.
#include "serve/protocol/chat_answer.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "serve/protocol/messages.h"
#include "serve/protocol/tool_choice.h"
#include "texts/answer_reader.h"
#include "tokenizer/base64.h"

namespace switchyard::serve {
namespace {

using chat::Delta;
using chat::Json;

ServedModel byte_model() {
  static const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("byte", "");
  return {.name = "small", .tokenizer = tokenizer.get(), .vocab = 257, .capacity = 100};
}

ChatRequest request_of(std::size_t choices, bool stream) {
  ChatRequest request;
  request.texts.resize(choices);
  request.prompt_tokens = 7;
  request.stream = stream;
  request.usage_at_end = stream;
  request.format = chat::Format::hermes;
  return request;
}

// Two choices: one with reasoning, content and a call, one that was cut.
std::vector<Piece> example_pieces() {
  using Kind = Delta::Kind;
  std::vector<Piece> pieces;
  pieces.push_back({.choice = 0, .tokens = 1, .deltas = {{Kind::reasoning, "Add"}}, .reasoning_tokens = 1});
  pieces.push_back({.choice = 1, .tokens = 1, .deltas = {{Kind::content, "Hel"}}});
  pieces.push_back(
      {.choice = 0, .tokens = 1, .deltas = {{Kind::reasoning, " them."}, {Kind::content, "I add."}}});
  pieces.push_back({.choice = 0,
                    .tokens = 1,
                    .deltas = {{Kind::call, "", 0, "add", ""}, {Kind::arguments, "{\"a\": 1", 0}}});
  pieces.push_back({
      .choice = 1,
      .tokens = 1,
      .deltas = {{Kind::content, "lo"}},
  });
  pieces.push_back({.choice = 0, .tokens = 1, .deltas = {{Kind::arguments, "}", 0}}});
  pieces.push_back({.choice = 1, .finish = Finish::length});
  pieces.push_back({.choice = 0, .finish = Finish::stop});
  return pieces;
}

std::string bytes_of(ProtocolAnswer& answer, const std::vector<Piece>& pieces) {
  std::string bytes = answer.begin();
  for (const Piece& piece : pieces) bytes += answer.add(piece);
  EXPECT_TRUE(answer.is_finished());
  return bytes + answer.end();
}

// The JSON of each event, in order.
std::vector<Json> events_of(const std::string& stream) {
  std::vector<Json> events;
  for (std::size_t at = 0; (at = stream.find("data: ", at)) != std::string::npos;) {
    const std::size_t end = stream.find('\n', at);
    const std::string text = stream.substr(at + 6, end - at - 6);
    if (text != "[DONE]") events.push_back(Json::parse(text));
    at = end;
  }
  return events;
}

// A member's text; null and no member are as an empty text.
std::string text_in(const Json& object, const char* name) {
  return object.contains(name) && object[name].is_string() ? object[name].get<std::string>() : "";
}

void join(const Json& delta, Json& message) {
  for (const auto& [name, value] : delta.items()) {
    if (name == "tool_calls") {
      for (const Json& part : value) {
        Json& call = message["tool_calls"][part["index"].get<std::size_t>()];
        if (part.contains("id"))
          call = {{"id", part["id"]}, {"type", part["type"]}, {"function", part["function"]}};
        else
          call["function"]["arguments"] = call["function"]["arguments"].get<std::string>() +
                                          part["function"]["arguments"].get<std::string>();
      }
    } else {
      message[name] = text_in(message, name.c_str()) + value.get<std::string>();
    }
  }
}

TEST(ChatAnswer, StreamsJoinToTheWholeAnswer) {
  const ServedModel model = byte_model();
  ChatAnswer whole(request_of(2, false), model, "chatcmpl-1", 5),
      stream(request_of(2, true), model, "chatcmpl-1", 5);
  const Json answer = Json::parse(bytes_of(whole, example_pieces()));
  const std::string bytes = bytes_of(stream, example_pieces());
  ASSERT_TRUE(bytes.ends_with("data: [DONE]\n\n"));
  Json joined[2];
  std::string finish[2];
  const std::vector<Json> events = events_of(bytes);
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    if (event["choices"].empty()) {
      EXPECT_EQ(event["usage"], answer["usage"]);
      continue;
    }
    EXPECT_TRUE(event["usage"].is_null());
    const Json& choice = event["choices"][0];
    join(choice["delta"], joined[choice["index"].get<std::size_t>()]);
    if (!choice["finish_reason"].is_null())
      finish[choice["index"].get<std::size_t>()] = choice["finish_reason"];
  }
  ASSERT_EQ(answer["choices"].size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const Json& message = answer["choices"][i]["message"];
    EXPECT_EQ(answer["choices"][i]["finish_reason"], finish[i]);
    for (const char* name : {"role", "content", "reasoning_content", "reasoning"})
      EXPECT_EQ(text_in(message, name), text_in(joined[i], name)) << name;
    EXPECT_EQ(message.contains("tool_calls"), joined[i].contains("tool_calls"));
  }
  const Json& call = answer["choices"][0]["message"]["tool_calls"][0];
  EXPECT_EQ(call["function"], joined[0]["tool_calls"][0]["function"]);
  EXPECT_EQ(call["function"]["arguments"], "{\"a\": 1}");
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
  EXPECT_EQ(finish[0], "tool_calls");
  EXPECT_EQ(finish[1], "length");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 6);
  EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
  EXPECT_FALSE(answer["choices"][1]["message"].contains("reasoning_content"));
}

// With the token that ended the answer, which has no text.
TEST(ChatAnswer, TokensAndExpertsAreReturned) {
  const ServedModel model = byte_model();
  const std::vector<Piece> pieces{{.tokens = 1, .made = {72}, .deltas = {{Delta::Kind::content, "H"}}},
                                  {.tokens = 1, .made = {195}},
                                  {.tokens = 1, .end = 256},
                                  {.finish = Finish::stop, .routing = "SYROUTE1 ..."}};
  const auto answered = [&](bool stream, bool asked) {
    ChatRequest request = request_of(1, stream);
    request.texts[0].prompt = {5, 6};
    request.texts[0].returns_token_ids = asked;
    ChatAnswer answer(request, model, "chatcmpl-1", 5);
    return bytes_of(answer, pieces);
  };
  const Json whole = Json::parse(answered(false, true));
  EXPECT_EQ(whole["prompt_token_ids"], Json({5, 6}));
  EXPECT_EQ(whole["choices"][0]["token_ids"], Json({72, 195, 256}));
  EXPECT_EQ(from_base64(whole["choices"][0]["routed_experts"].get<std::string>()), "SYROUTE1 ...");
  const std::vector<Json> events = events_of(answered(true, true));
  EXPECT_EQ(events[0]["prompt_token_ids"], Json({5, 6}));
  Json ids = Json::array();
  for (const Json& event : events) {
    if (event["choices"].empty()) continue;
    const Json& choice = event["choices"][0];
    for (const Json& id : choice.value("token_ids", Json::array())) ids.push_back(id);
    EXPECT_EQ(choice.contains("routed_experts"), !choice["finish_reason"].is_null());
  }
  EXPECT_EQ(ids, Json({72, 195, 256}));
  EXPECT_EQ(answered(false, false).find("token_ids"), std::string::npos);
  EXPECT_EQ(answered(true, false).find("token_ids"), std::string::npos);
}

TEST(ChatAnswer, ContentIsNullBesideCallsAlone) {
  using Kind = Delta::Kind;
  const ServedModel model = byte_model();
  ChatAnswer answer(request_of(1, false), model, "chatcmpl-1", 5);
  const Json whole = Json::parse(
      bytes_of(answer, {{.tokens = 1,
                         .finish = Finish::stop,
                         .deltas = {{Kind::call, "", 0, "f", "x"}, {Kind::arguments, "{}", 0}}}}));
  EXPECT_TRUE(whole["choices"][0]["message"]["content"].is_null());
  EXPECT_EQ(whole["choices"][0]["message"]["tool_calls"][0]["id"], "x");
  ChatAnswer empty(request_of(1, false), model, "chatcmpl-2", 5);
  EXPECT_EQ(Json::parse(bytes_of(empty, {{.finish = Finish::stop}}))["choices"][0]["message"]["content"], "");
}

TEST(ChatAnswer, ReasoningIsHiddenAndCounted) {
  const ServedModel model = byte_model();
  ChatRequest request = request_of(2, false);
  request.shows_reasoning = false;
  ChatAnswer answer(request, model, "chatcmpl-1", 5);
  const Json whole = Json::parse(bytes_of(answer, example_pieces()));
  EXPECT_FALSE(whole["choices"][0]["message"].contains("reasoning"));
  EXPECT_EQ(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
}

TEST(ChatAnswer, AFailedTextIsAnError) {
  const ServedModel model = byte_model();
  const std::vector<Piece> pieces{{.finish = Finish::failed, .problem = "no numbers"}};
  ChatAnswer whole(request_of(1, false), model, "chatcmpl-1", 5),
      stream(request_of(1, true), model, "chatcmpl-1", 5);
  EXPECT_EQ(Json::parse(bytes_of(whole, pieces))["error"]["message"], "no numbers");
  EXPECT_EQ(whole.status(), 500);
  EXPECT_EQ(events_of(bytes_of(stream, pieces)).back()["error"]["type"], "server_error");
}

TEST(Messages, BlocksJoinToTheWholeAnswer) {
  const ServedModel model = byte_model();
  std::vector<Piece> pieces;
  for (Piece& piece : example_pieces()) {
    if (piece.choice == 0) pieces.push_back(piece);
  }
  MessagesAnswer whole(request_of(1, false), model, "msg_1"), stream(request_of(1, true), model, "msg_1");
  const Json answer = Json::parse(bytes_of(whole, pieces));
  Json blocks = Json::array();
  std::string arguments, stop_reason;
  for (const Json& event : events_of(bytes_of(stream, pieces))) {
    if (event["type"] == "content_block_start") blocks.push_back(event["content_block"]);
    if (event["type"] == "message_delta") stop_reason = event["delta"]["stop_reason"];
    if (event["type"] != "content_block_delta") continue;
    Json& block = blocks[event["index"].get<std::size_t>()];
    const Json& delta = event["delta"];
    if (delta["type"] == "text_delta")
      block["text"] = block["text"].get<std::string>() + delta["text"].get<std::string>();
    if (delta["type"] == "thinking_delta")
      block["thinking"] = block["thinking"].get<std::string>() + delta["thinking"].get<std::string>();
    if (delta["type"] == "input_json_delta") arguments += delta["partial_json"].get<std::string>();
  }
  ASSERT_EQ(blocks.size(), 3u);
  blocks[2]["input"] = Json::parse(arguments);
  blocks[2]["id"] = answer["content"][2]["id"];
  EXPECT_EQ(answer["content"], blocks);
  EXPECT_EQ(answer["stop_reason"], "tool_use");
  EXPECT_EQ(stop_reason, "tool_use");
  EXPECT_EQ(answer["usage"]["output_tokens"], 4);
}

TEST(Messages, AnAnswerTellsOneText) {
  const ServedModel model = byte_model();
  EXPECT_THROW(MessagesAnswer(request_of(2, false), model, "msg_1"), Error);
  ChatAnswer answer(request_of(1, false), model, "chatcmpl-1", 5);
  answer.add({.choice = 0, .finish = Finish::stop});
  EXPECT_THROW(answer.add({.choice = 0, .finish = Finish::stop}), Error);  // else it would never end
  EXPECT_THROW(answer.add({.choice = 1}), Error);
}

TEST(AnswerReader, StopsInContentAlone) {
  AnswerForm form{.format = chat::Format::think, .opens_reasoning = true, .stop = {"END"}};
  AnswerReader reader(form);
  std::string content, reasoning;
  const auto add = [&](std::string_view text) {
    for (const Delta& delta : reader.add(text))
      (delta.kind == Delta::Kind::content ? content : reasoning) += delta.text;
  };
  add("an END here");
  EXPECT_TRUE(reader.in_reasoning());
  EXPECT_FALSE(reader.is_over());
  add("</think>Yes E");
  EXPECT_FALSE(reader.in_reasoning());
  add("ND more");
  EXPECT_TRUE(reader.is_over());
  EXPECT_EQ(reader.stop_word(), "END");
  add("nothing");
  EXPECT_EQ(content, "Yes ");
  EXPECT_EQ(reasoning, "an END here");
}

TEST(AnswerReader, ReasoningMayStayInTheContent) {
  for (const chat::Format format : {chat::Format::think, chat::Format::hermes, chat::Format::harmony}) {
    AnswerReader reader({.format = format, .keeps_reasoning = true});
    std::string content;
    for (const char* text : {"<thi", "nk>\nSo.\n</think>", "\n\nYes"}) {
      for (const Delta& delta : reader.add(text)) {
        EXPECT_EQ(delta.kind, Delta::Kind::content);
        content += delta.text;
      }
    }
    for (const Delta& delta : reader.finish(chat::TextEnd::stop)) content += delta.text;
    EXPECT_EQ(content, "<think>\nSo.\n</think>\n\nYes");
  }
}

const char* const kTools =
    R"([{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}])";

TEST(AnswerReader, EndsAfterItsOnlyCall) {
  AnswerForm form{.format = chat::Format::hermes, .tools = Json::parse(kTools), .one_call = true};
  AnswerReader reader(form);
  std::size_t calls = 0;
  for (const char* text : {"<tool_call>{\"name\": \"f\", \"arguments\": {}}", "</tool_call>",
                           "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>"}) {
    for (const Delta& delta : reader.add(text)) calls += delta.kind == Delta::Kind::call;
  }
  EXPECT_EQ(calls, 1u);
  EXPECT_TRUE(reader.is_over());
}

ToolChoice choice_of(const std::string& choice) {
  return tool_choice_of(
      Json::parse(std::string("{\"tools\": ") + kTools + ", \"tool_choice\": " + choice + "}"));
}

TEST(ToolChoice, SaysWhichToolsMayOrMustBeCalled) {
  using Mode = ToolChoice::Mode;
  EXPECT_EQ(choice_of("null").mode, Mode::automatic);
  EXPECT_EQ(choice_of("\"auto\"").tools.size(), 2u);
  EXPECT_EQ(choice_of("\"none\"").mode, Mode::none);
  EXPECT_EQ(choice_of("\"required\"").mode, Mode::required);
  const ToolChoice named = choice_of(R"({"type": "function", "function": {"name": "g"}})");
  EXPECT_EQ(named.mode, Mode::required);
  ASSERT_EQ(named.tools.size(), 1u);
  EXPECT_EQ(named.tools[0]["function"]["name"], "g");
  const ToolChoice allowed = choice_of(
      R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}})");
  EXPECT_EQ(allowed.mode, Mode::automatic);
  EXPECT_TRUE(allowed.restricted);
  EXPECT_THROW(choice_of("\"sometimes\""), BadRequest);
  EXPECT_THROW(choice_of(R"({"type": "function", "function": {"name": "h"}})"), BadRequest);
  EXPECT_THROW(tool_choice_of(Json::parse(R"({"tool_choice": "required"})")), BadRequest);
}

}  // namespace
}  // namespace switchyard::serve
