// Requests of /v1/responses become chats, or are refused by name.
#include "serve/protocol/responses_request.h"

#include <gtest/gtest.h>

#include "serve/responses_testing.h"

namespace switchyard::serve {
namespace {

using chat::Json;

Json chat_of(const std::string& body, StoredResponses& stored) {
  return read_responses(Json::parse(body), stored, {}, "t").chat;
}

Json messages_in(const std::string& input) {
  StoredResponses stored;
  return chat_of("{\"input\": " + input + "}", stored)["messages"];
}

TEST(Responses, BecomeAChat) {
  StoredResponses stored;
  const Json chat = chat_of(R"({
    "model": "m", "instructions": "Be brief.", "max_output_tokens": 5, "store": false, "stream": true, "seed": 3,
    "input": [{"role": "developer", "content": "In verse."}, {"role": "user", "content": "Hi"}],
    "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": false},
              {"type": "function", "name": "g", "strict": true}],
    "tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": false, "metadata": {"a": "b"},
    "reasoning": {"effort": "low", "summary": "auto"}, "truncation": "disabled", "background": false,
    "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true}},
    "include": ["message.output_text.logprobs", "web_search_call.results"], "top_logprobs": 2, "temperature": null,
    "stream_options": {"include_obfuscation": true}})",
                            stored);
  const Json wanted = Json::parse(R"({
    "model": "m", "max_completion_tokens": 5, "stream": true, "seed": 3, "reasoning_effort": "low", "verbosity": "low",
    "logprobs": true, "top_logprobs": 2, "parallel_tool_calls": false, "tool_choice": {"type": "function", "name": "f"},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": true}},
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": false}},
              {"type": "function", "function": {"name": "g", "strict": true}}],
    "messages": [{"role": "system", "content": "Be brief.\n\nIn verse."},
                 {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]})");
  EXPECT_EQ(nlohmann::json(chat), nlohmann::json(wanted)) << chat.dump(1);
}

// Reasoning, text and calls of one answer are one message, whatever the order of results.
TEST(Responses, ItemsBecomeMessages) {
  const Json messages = messages_in(R"([
    {"role": "user", "content": [{"type": "input_text", "text": "Sum"}, {"type": "input_text", "text": "them"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "I add."}], "encrypted_content": null},
    {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
     "content": [{"type": "output_text", "text": "Wait.", "annotations": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "add", "arguments": "{\"x\": 1}"},
    {"type": "function_call", "call_id": "b", "name": "add", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "b", "output": "7"},
    {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "8"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Done"}]},
    {"role": "assistant", "content": "15"},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No more."}]},
    {"role": "system", "content": "Be kind."}])");
  EXPECT_EQ(messages, Json::parse(R"([
    {"role": "user", "content": [{"type": "text", "text": "Sum"}, {"type": "text", "text": "them"}]},
    {"role": "assistant", "content": "Wait.", "reasoning_content": "I add.", "tool_calls": [
      {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{\"x\": 1}"}},
      {"id": "b", "type": "function", "function": {"name": "add", "arguments": "{}"}}]},
    {"role": "tool", "content": "7", "tool_call_id": "b"},
    {"role": "tool", "content": [{"type": "text", "text": "8"}], "tool_call_id": "a"},
    {"role": "assistant", "content": "15", "reasoning_content": "Done"},
    {"role": "assistant", "content": "No more."},
    {"role": "system", "content": "Be kind."}])"));
}

// Clients that store nothing here send sealed reasoning back; what another server sealed cannot be read.
TEST(Responses, SealedReasoningComesBack) {
  const auto reasoning_of = [](const std::string& sealed) {
    const Json item{{"type", "reasoning"}, {"summary", Json::array()}, {"encrypted_content", sealed}};
    return messages_in(Json::array({item, {{"role", "assistant"}, {"content", "Yes"}}}).dump())[0];
  };
  for (const char* text : {"a", "two", "Überlegung, lang"})
    EXPECT_EQ(reasoning_of(sealed_reasoning(text))["reasoning_content"], text);
  EXPECT_FALSE(reasoning_of("gAAAAABk").contains("reasoning_content"));
}

void expect_refused_response(const std::string& members, const std::string& field, int status = 400) {
  StoredResponses stored;
  const ServedModel model = chatting_model();
  try {
    ResponsesRequest request = read_responses(Json::parse("{" + members + "}"), stored, {}, "t");
    chat_of_responses(request, model, 1, kNobody);
    ADD_FAILURE() << members;
  } catch (const BadRequest& error) {
    EXPECT_EQ(error.field, field) << error.what();
    EXPECT_EQ(error.status, status) << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with(field)) << error.what();
  }
}

TEST(Responses, RefuseInOneLineByName) {
  expect_refused_response("", "input");
  expect_refused_response(R"("input": [])", "input");
  expect_refused_response(R"("input": 5)", "input");
  expect_refused_response(R"("input": [7])", "input[0]");
  expect_refused_response(R"("input": [{"role": "tool", "content": "a"}])", "input[0].role");
  expect_refused_response(R"("input": [{"role": "user"}])", "input[0].content");
  expect_refused_response(R"("input": [{"role": "user", "content": [{"type": "input_image"}]}])",
                          "input[0].content[0].type");
  for (const char* type :
       {"custom_tool_call", "local_shell_call", "web_search_call", "mcp_call", "compaction"})
    expect_refused_response(
        R"("input": [{"role": "user", "content": "a"}, {"type": ")" + std::string(type) + "\"}]",
        "input[1].type");
  expect_refused_response(R"("input": [{"type": "function_call_output", "call_id": "x", "output": "1"}])",
                          "input[0].call_id");
  expect_refused_response(R"("input": [{"type": "function_call", "call_id": "x", "name": "f"}])",
                          "input[0].arguments");
  expect_refused_response(R"("input": [{"type": "item_reference", "id": "msg_9"}])", "input[0].id", 404);
  for (const char* type : {"custom", "web_search", "web_search_preview", "file_search", "mcp", "local_shell",
                           "code_interpreter", "image_generation", "computer_use_preview", "namespace"})
    expect_refused_response(R"("input": "a", "tools": [{"type": ")" + std::string(type) + "\"}]",
                            "tools[0].type");
  expect_refused_response(R"("input": "a", "tools": [{"type": "function", "name": "a b"}])", "tools[0].name");
  expect_refused_response(
      R"("input": "a", "tools": [{"type": "function", "name": "f", "defer_loading": true}])",
      "tools[0].defer_loading");
  expect_refused_response(R"("input": "a", "tool_choice": {"type": "web_search"})", "tool_choice");
  expect_refused_response(R"("input": "a", "tool_choice": "required")", "tool_choice");
  expect_refused_response(R"("input": "a", "background": true)", "background");
  expect_refused_response(R"("input": "a", "truncation": "auto")", "truncation");
  expect_refused_response(R"("input": "a", "conversation": "conv_1")", "conversation");
  expect_refused_response(R"("input": "a", "prompt": {"id": "p"})", "prompt");
  expect_refused_response(R"("input": "a", "n": 2)", "n");
  expect_refused_response(R"("input": "a", "prompt_cache_options": {"prewarm": true})",
                          "prompt_cache_options.prewarm");
  expect_refused_response(R"("input": "a", "max_tokens": 5)", "max_tokens");
  expect_refused_response(R"("input": "a", "response_format": {"type": "text"})", "response_format");
  expect_refused_response(R"("input": "a", "max_output_tokens": 0)", "max_output_tokens");
  expect_refused_response(R"("input": "a", "include": ["all"])", "include[0]");
  expect_refused_response(R"("input": "a", "top_logprobs": 3)", "top_logprobs");
  expect_refused_response(R"("input": "a", "top_logprobs": 21)", "top_logprobs");
  expect_refused_response(R"("input": "a", "metadata": {"a": 1})", "metadata");
  expect_refused_response(R"("input": "a", "reasoning": {"summary": "some"})", "reasoning.summary");
  expect_refused_response(R"("input": "a", "reasoning": {"effort": 3})", "reasoning.effort");
  expect_refused_response(R"("input": "a", "text": {"verbosity": "none"})", "text.verbosity");
  expect_refused_response(R"("input": "a", "text": {"format": {"type": "grammar"}})", "text.format.type");
  expect_refused_response(R"("input": "a", "text": {"format": {"type": "json_schema", "name": "n"}})",
                          "text.format.schema");
  expect_refused_response(R"("input": "a", "previous_response_id": "resp_0")", "previous_response_id");
  expect_refused_response(R"("input": "a", "model": "large")", "model", 404);
}

// References are short, and what they stand for may be long.
TEST(Responses, ReferToSoMuchOnly) {
  StoredResponses stored;
  const Json item{{"type", "message"},
                  {"id", "msg_1"},
                  {"role", "user"},
                  {"content", {{{"type", "input_text"}, {"text", std::string(9 << 20, 'a')}}}}};
  stored.keep({}, "resp_1",
              {.text = "{}", .conversation = {stored_item(item)}, .input_begin = 0, .input_end = 1});
  const std::string reference = R"({"type": "item_reference", "id": "msg_1"})";
  EXPECT_EQ(chat_of("{\"input\": [" + reference + "]}", stored)["messages"].size(), 1U);
  try {
    chat_of("{\"input\": [" + reference + ", " + reference + "]}", stored);
    ADD_FAILURE();
  } catch (const BadRequest& error) {
    EXPECT_EQ(error.field, "input[1]") << error.what();
  }
}

TEST(Responses, UnknownMembersAreNamed) {
  StoredResponses stored;
  const ServedModel model = chatting_model();
  ResponsesRequest request = read_responses(
      Json::parse(
          R"({"input": "a", "client_metadata": {}, "text": {"tone": 1}, "service_tier": "auto", "user": "u"})"),
      stored, {}, "t");
  EXPECT_EQ(chat_of_responses(request, model, 1, kNobody).ignored,
            (std::vector<std::string>{"client_metadata", "text.tone"}));
}

// A tool is strict unless the request says otherwise, or its schema cannot be held to.
TEST(Responses, ToolsAreStrictWhereTheyCanBe) {
  StoredResponses stored;
  const ServedModel model = chatting_model();  // without grammars: nothing can be held to
  ResponsesRequest request = read_responses(
      Json::parse(R"({"input": "a", "tools": [{"type": "function", "name": "f"}]})"), stored, {}, "t");
  EXPECT_EQ(request.chat["tools"][0]["function"]["strict"], true);
  chat_of_responses(request, model, 1, kNobody);
  EXPECT_EQ(request.shown["tools"][0]["strict"], false);
  EXPECT_FALSE(request.chat["tools"][0]["function"].contains("strict"));
  ResponsesRequest strict = read_responses(
      Json::parse(R"({"input": "a", "tools": [{"type": "function", "name": "f", "strict": true}]})"), stored,
      {}, "t");
  EXPECT_THROW(chat_of_responses(strict, model, 1, kNobody), BadRequest);
}

}  // namespace
}  // namespace switchyard::serve
