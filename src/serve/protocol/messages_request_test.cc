// Requests of Anthropic's Messages API become those of a chat, or are refused in that API's words.
#include "serve/protocol/messages_request.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "serve/protocol/messages.h"

namespace switchyard::serve {
namespace {

using chat::Json;

TEST(Messages, BecomeAChat) {
  const Json chat = chat_of_messages(Json::parse(R"({
    "model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "Be brief."}], "stop_sequences": ["END"],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": true}, "metadata": {"user_id": "u"},
    "thinking": {"type": "enabled", "budget_tokens": 9},
    "messages": [
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""}, {"type": "text", "text": "a"},
                                        {"type": "tool_use", "id": "x", "name": "f", "input": {"b": 1}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "7"}, {"type": "text", "text": "So?"}]}]})"),
                                     false)
                        .body;
  EXPECT_EQ(chat, Json::parse(R"({
    "model": "m", "max_tokens": 5, "stop": ["END"],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
    "tool_choice": "required", "parallel_tool_calls": false, "chat_template_kwargs": {"enable_thinking": true},
    "max_reasoning_tokens": 9,
    "messages": [
      {"role": "system", "content": "Be brief."},
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": "a",
       "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{\"b\":1}"}}],
       "reasoning_content": "t"},
      {"role": "tool", "tool_call_id": "x", "content": "7"},
      {"role": "user", "content": "So?"}]})"));
}

void expect_refused(const char* body, const std::string& field) {
  try {
    chat_of_messages(Json::parse(body), false);
    ADD_FAILURE() << body;
  } catch (const BadRequest& error) {
    EXPECT_EQ(error.field, field) << error.what();
  }
}

TEST(Messages, RefuseInOneLine) {
  expect_refused(R"({"messages": [{"role": "user", "content": "a"}]})", "max_tokens");
  expect_refused(R"({"max_tokens": 1, "messages": []})", "messages");
  expect_refused(R"({"max_tokens": 1, "messages": [{"role": "system", "content": "a"}]})",
                 "messages[0].role");
  expect_refused(R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image"}]}]})",
                 "messages[0].content[0].type");
  expect_refused(R"({"max_tokens": 1, "tools": [{"type": "bash_20250124", "name": "bash"}], "messages": []})",
                 "tools[0].type");
  expect_refused(R"({"max_tokens": 1, "messages": 5})", "messages");
  expect_refused(R"({"max_tokens": 1, "messages": [7]})", "messages[0].role");
}

Json chat_of(const std::string& fields, bool takes_effort = false) {
  return chat_of_messages(
             Json::parse(R"({"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], )" + fields +
                         "}"),
             takes_effort)
      .body;
}

void expect_field_refused(const std::string& fields, const std::string& field) {
  try {
    chat_of(fields);
    ADD_FAILURE() << fields;
  } catch (const BadRequest& error) {
    EXPECT_EQ(error.field, field) << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with(field)) << error.what();
  }
}

TEST(Messages, FieldsOfOtherApisAreRefused) {
  for (const char* name :
       {"n", "best_of", "logprobs", "top_logprobs", "stream_options", "response_format", "stop",
        "max_completion_tokens", "parallel_tool_calls", "reasoning_effort", "continue_final_message",
        "functions", "max_output_tokens", "input", "instructions"})
    expect_field_refused(fmt::format(R"("{}": 2)", name), name);
  expect_field_refused(R"("tool_choice": "auto")", "tool_choice.type");
  expect_field_refused(R"("tool_choice": {"type": "function", "function": {"name": "f"}})",
                       "tool_choice.type");
  expect_field_refused(R"("tool_choice": {"type": "auto", "disable_parallel_tool_use": 1})",
                       "tool_choice.disable_parallel_tool_use");
  expect_field_refused(R"("tools": [{"type": "function", "function": {"name": "f"}}])", "tools[0].type");
  expect_field_refused(R"("tools": [{"name": "f", "parameters": {}}])", "tools[0].parameters");
  expect_refused(R"({"max_tokens": 1, "messages": [{"role": "assistant", "content": "", "tool_calls": []}]})",
                 "messages[0].tool_calls");
  EXPECT_EQ(
      chat_of(R"("seed": 3, "n": null, "cache_salt": "s")"),
      Json::parse(
          R"({"max_tokens": 5, "seed": 3, "cache_salt": "s", "messages": [{"role": "user", "content": "Hi"}]})"));
}

TEST(Messages, OutputHasAForm) {
  const Json format = Json::parse(
      R"({"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}})");
  for (const char* field :
       {R"("output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}})",
        R"("output_format": {"type": "json_schema", "schema": {"type": "object"}})"})
    EXPECT_EQ(chat_of(field)["response_format"], format) << field;
  expect_field_refused(R"("output_format": {"type": "xml"})", "output_format.type");
  expect_field_refused(R"("output_config": {"format": {"type": "json_schema"}})",
                       "output_config.format.schema");
  expect_field_refused(R"("output_config": {"task_budget": {}})", "output_config.task_budget");
  expect_field_refused(R"("output_config": {"effort": "most"})", "output_config.effort");
  expect_field_refused(R"("output_config": {"effort": "low"})", "output_config.effort");
  EXPECT_EQ(chat_of(R"("output_config": {"effort": "low"})", true)["reasoning_effort"], "low");
  EXPECT_FALSE(chat_of(R"("output_config": {"effort": "high"})").contains("reasoning_effort"));
  EXPECT_EQ(chat_of(R"("thinking": {"type": "adaptive", "display": "omitted"})")["include_reasoning"], false);
}

TEST(Messages, ServicesThatAreNotHereMustBeUnused) {
  for (const char* field :
       {R"("mcp_servers": [])", R"("container": null)", R"("context_management": {})",
        R"("context_management": {"edits": []})",
        R"("context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})"})
    EXPECT_EQ(chat_of(field).size(), 2u) << field;
  expect_field_refused(R"("mcp_servers": [{"type": "url"}])", "mcp_servers");
  expect_field_refused(R"("container": "c")", "container");
  expect_field_refused(R"("compaction": {"type": "x"})", "compaction");
  expect_field_refused(R"("context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]})",
                       "context_management");
}

// Without the code of its own a client would send the next turn alone.
TEST(Messages, ThreadsAreRefusedByTheirCode) {
  for (const char* thread :
       {R"({"type": "create"})", R"({"type": "continue", "previous_message_id": "msg_1"})"}) {
    try {
      chat_of(fmt::format(R"("thread": {})", thread));
      ADD_FAILURE() << thread;
    } catch (const BadRequest& error) {
      EXPECT_EQ(error.field, "thread");
      const Json body = Json::parse(messages_error(error.status, error.what(), error.code));
      EXPECT_EQ(body["error"]["details"]["error_code"], "thread_unsupported_request");
    }
  }
  EXPECT_FALSE(Json::parse(messages_error(400, "bad", "invalid_value"))["error"].contains("details"));
  EXPECT_EQ(chat_of(R"("thread": null, "fallbacks": [], "user_profile_id": "u")").size(), 2u);
}

TEST(Messages, BlocksThatAreTexts) {
  const MessagesChat chat = chat_of_messages(Json::parse(R"({"max_tokens": 5, "messages": [
    {"role": "user", "content": [
      {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "abc"}, "title": "T", "citations": {"enabled": false}},
      {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "d"}, {"type": "text", "text": "e"}]}},
      {"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "eA=="}, {"type": "tool_use", "id": "x", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "is_error": true, "content": [
      {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "found"}]}]}]}]})"),
                                             false);
  EXPECT_EQ(chat.body["messages"], Json::parse(R"([
    {"role": "user", "content": "T\nabc\nd\ne\nHi"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "x", "content": "t\ns\nfound", "is_error": true}])"));
  const auto refused = [](const char* block, const char* field) {
    expect_refused(
        fmt::format(R"({{"max_tokens": 1, "messages": [{{"role": "user", "content": [{}]}}]}})", block)
            .c_str(),
        field);
  };
  refused(R"({"type": "document", "source": {"type": "base64", "data": ""}})",
          "messages[0].content[0].source.type");
  refused(R"({"type": "document", "source": {"type": "text", "data": "a"}, "citations": {"enabled": true}})",
          "messages[0].content[0].citations");
  refused(R"({"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]})",
          "messages[0].content[0].content[0].type");
}

TEST(Messages, GoOnWithTheLastAnswer) {
  const auto chat = [](const char* last) {
    return chat_of_messages(
               Json::parse(fmt::format(R"({{"max_tokens": 5, "messages": [{{"role": "user", "content": "Hi"}},
      {{"role": "assistant", "content": {}}}]}})",
                                       last)),
               false)
        .body;
  };
  const Json begun = chat(R"("The answer is")");
  EXPECT_EQ(begun["continue_final_message"], true);
  EXPECT_EQ(begun["add_generation_prompt"], false);
  EXPECT_EQ(begun["messages"].back()["content"], "The answer is");
  const Json empty = chat(R"([])");
  EXPECT_FALSE(empty.contains("continue_final_message"));
  EXPECT_EQ(empty["messages"].size(), 1u);
  EXPECT_THROW(chat(R"([{"type": "tool_use", "id": "x", "name": "f", "input": {}}])"), BadRequest);
}

TEST(Messages, ErrorsNamePlacesOfTheRequest) {
  const MessagesChat chat =
      chat_of_messages(Json::parse(R"({"max_tokens": 5, "system": "s", "stop_sequences": [],
    "output_format": {"type": "json_schema", "schema": {}}, "tools": [{"name": "f", "input_schema": {}}],
    "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}, {"type": "text", "text": "a"}]}]})"),
                       false);
  const auto own = [&](const std::string& field) {
    const BadRequest error = in_words_of_messages({field, field + ": bad", "code", 404}, chat);
    EXPECT_EQ(error.what(), error.field + ": bad");
    EXPECT_EQ(error.status, 404);
    return error.field;
  };
  EXPECT_EQ(own("tools[0].function.name"), "tools[0].name");
  EXPECT_EQ(own("tools[0].function.parameters"), "tools[0].input_schema");
  EXPECT_EQ(own("stop"), "stop_sequences");
  EXPECT_EQ(own("response_format.json_schema.schema"), "output_format.schema");
  EXPECT_EQ(own("messages[0].content"), "system.content");
  EXPECT_EQ(own("messages[1].tool_call_id"), "messages[0].content[0].tool_call_id");
  EXPECT_EQ(own("messages[2].content"), "messages[0].content");
  EXPECT_EQ(own("temperature"), "temperature");
}

}  // namespace
}  // namespace switchyard::serve
