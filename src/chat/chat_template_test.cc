// Chat templates: what requests become, with templates written for these tests (tests/golden/chat/templates),
// and with published ones where the goldens of ../shared are there.
#include "chat/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>

#include "chat/tools.h"
#include "core/error.h"
#include "core/json_file.h"
#include "core/testing.h"
#include "tokenizer/tokenizer.h"

namespace switchyard::chat {
namespace {

namespace fs = std::filesystem;

fs::path template_folder() {
  return fs::path(kSourceFolder) / "tests/golden/chat/templates";
}

ChatTemplate template_named(const std::string& name, Json kwargs = Json::object()) {
  TemplateSource source;
  source.text = read_whole_file((template_folder() / (name + ".jinja")).string());
  source.origin = name;
  source.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  ChatTemplate::Options options;
  options.kwargs = std::move(kwargs);
  return {source, options};
}

std::string prompt_text(const ChatTemplate& chat, const std::string& body) {
  return chat.prompt(Json::parse(body)).text;
}

// Expects a refusal with a field, a code, and words in its message.
void expect_refused(const ChatTemplate& chat, const std::string& body, const std::string& field,
                    const std::string& code, const std::string& words = "") {
  try {
    ADD_FAILURE() << "accepted: " << chat.prompt(Json::parse(body)).text;
  } catch (const BadRequest& refusal) {
    EXPECT_EQ(refusal.field, field) << body;
    EXPECT_EQ(refusal.code, code) << body;
    EXPECT_EQ(refusal.status, 400);
    EXPECT_NE(std::string(refusal.what()).find(words), std::string::npos) << refusal.what();
  }
}

TEST(ChatTemplate, RolesToolsAndCalls) {
  const ChatTemplate chat = template_named("marked");
  EXPECT_EQ(prompt_text(chat, R"({"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],
      "messages":[{"role":"developer","content":"S"},{"role":"user","content":[{"type":"text","text":"a"},
      {"type":"input_text","text":"b"},{"type":"refusal","refusal":"c"}]},
      {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",
       "function":{"name":"f","arguments":"{\"x\": 1.0, \"y\": [true]}"}}]},
      {"role":"tool","tool_call_id":"1","content":"7"}]})"),
            "<|im_start|>tools\n"
            R"({"type": "function", "function": {"name": "f", "parameters": {}}})"
            "\n<|im_end|>\n<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na\nb\nc<|im_end|>\n"
            "<|im_start|>assistant\n<call>f x=1.0 y=[true]</call><|im_end|>\n<|im_start|>tool\n7<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n");
}

TEST(ChatTemplate, ReasoningOfEarlierTurnsIsTheTemplatesToDrop) {
  const ChatTemplate chat = template_named("marked", {{"enable_thinking", false}});
  EXPECT_EQ(
      prompt_text(chat, R"({"messages":[{"role":"user","content":"a"},
      {"role":"assistant","content":"b","reasoning":"old"},{"role":"user","content":"c"},
      {"role":"assistant","content":"d","thinking":"new"}]})"),
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
      "<|im_start|>assistant\n<think>new</think>d<|im_end|>\n"
      "<|im_start|>assistant\n<think>\n</think>\n");
}

TEST(ChatTemplate, ContentInPartsWhereTheTemplateTakesThem) {
  const ChatTemplate chat = template_named("parts");
  EXPECT_EQ(prompt_text(chat, R"({"messages":[{"role":"developer","content":"S"},{"role":"user",
      "content":[{"type":"text","text":"a"},{"type":"input_text","text":"b"}]}]})"),
            "<s>[developer]S[/][user](a)(b)[/][assistant]");
}

TEST(ChatTemplate, ArgumentTextsAndCallsWithoutContent) {
  const ChatTemplate chat = template_named("calls");
  const auto with_arguments = [&](const std::string& arguments) {
    return prompt_text(chat, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"",
        "tool_calls":[{"function":{"name":"f","arguments":)" +
                                 arguments + R"(}}]}],
        "add_generation_prompt":false})");
  };
  EXPECT_EQ(with_arguments(R"("{\"x\":1}")"), R"(<|user|>a<|call|>f {"x":1})");
  EXPECT_EQ(with_arguments(R"({"x":1,"y":"é"})"), R"(<|user|>a<|call|>f {"x": 1, "y": "é"})");
  EXPECT_EQ(with_arguments("\"\""), "<|user|>a<|call|>f {}");
  EXPECT_EQ(with_arguments("null"), "<|user|>a<|call|>f {}");
}

ChatTemplate template_of(const std::string& text) {
  TemplateSource source;
  source.text = text;
  source.origin = "test";
  return {source, {}};
}

// Arguments of earlier calls stay in the conversation, whatever a model wrote.
TEST(ChatTemplate, ArgumentsThatAreNoObject) {
  const auto prompt_of = [](const ChatTemplate& chat, const std::string& arguments) {
    return prompt_text(chat, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,
        "tool_calls":[{"id":null,"type":null,"function":{"name":"f","arguments":)" +
                                 arguments +
                                 R"(}}]},{"role":"tool","content":[{"type":"text","text":"no JSON"}]}]})");
  };
  const ChatTemplate as_text = template_of(
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }} "
      "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}]"
      "{% endfor %}{% endfor %}");
  EXPECT_EQ(prompt_of(as_text, R"("{\"a\": 1")"), R"(a[f {"a": 1]no JSON)");
  EXPECT_EQ(prompt_of(as_text, R"("[1]")"), "a[f [1]]no JSON");
  EXPECT_EQ(prompt_of(as_text, "[1]"), "a[f [1]]no JSON");
  EXPECT_EQ(prompt_of(as_text, "\"\""), "a[f {}]no JSON");
  EXPECT_EQ(prompt_of(as_text, "null"), "a[f {}]no JSON");
  EXPECT_EQ(prompt_of(as_text, "\"null\""), "a[f {}]no JSON");
  EXPECT_EQ(prompt_of(as_text, R"({"a":1})"), R"(a[f {"a": 1}]no JSON)");
  const ChatTemplate as_items = template_of(
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}"
      "{% for k, v in c.function.arguments | items %} {{ k }}={{ v }}{% endfor %}]{% endfor %}{% endfor %}");
  EXPECT_EQ(prompt_of(as_items, R"("{\"a\": 1")"), "a[f]no JSON");
  EXPECT_EQ(prompt_of(as_items, R"("{\"a\": 1}")"), "a[f a=1]no JSON");
}

TEST(ChatTemplate, FillsInWhatToolsMayLeaveOut) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":)";
  const std::string bare = body + R"({"name":"f"}}]})";
  EXPECT_EQ(prompt_text(template_of("{{ tools | tojson }}{{ messages[0].content }}"), bare),
            R"([{"type": "function", "function": {"name": "f"}}]a)");
  EXPECT_EQ(
      prompt_text(template_of("{{ tools[0].function.name + ': ' + tools[0].function.description }}"), bare),
      "f: ");
  EXPECT_EQ(
      prompt_text(
          template_of("{{ tools[0].function.name }}{% for k, v in tools[0].function.parameters.properties "
                      "| items %}{{ k }}{% endfor %}"),
          bare),
      "f");
  const ChatTemplate types = template_of(
      "{{ tools[0].function.name }}{% for k, v in tools[0].function.parameters.properties | items %} {{ k "
      "}}: {{ v.type "
      "| upper }} {{ v.description + '.' }}{% endfor %}{{ tools[0].function.parameters.required | join }}");
  EXPECT_EQ(
      prompt_text(types, body + R"({"name":"f","parameters":{"properties":{"a":{"enum":["x"]},"b":{"anyOf":
                [{"type":"null"},{"type":"integer"}]},"c":{"description":"d"}}}}}]})"),
      "f a: STRING . b: INTEGER . c: STRING d.");
  EXPECT_EQ(prompt_text(
                template_of(
                    "{{ tools[0].function.name }} {{ tools[0].function.parameters.properties.a.type + '' }}"),
                body + R"({"name":"f","parameters":{"properties":{"a":{"type":["null","number"]}}}}}]})"),
            "f number");
  expect_refused(template_of("{% for t in tools %}{{ t.function.name + t.function.group }}{% endfor %}"),
                 R"({"messages":[{"role":"user","content":"a"}],"tools":[
                    {"type":"function","function":{"name":"f","group":"g"}},{"type":"function","function":{"name":"h"}}]})",
                 "tools[1].function", "template_error", "group");
}

TEST(ChatTemplate, FillsInIdsThatATemplateAsksFor) {
  const ChatTemplate chat = template_of(
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{% if c.id is not defined or "
      "c.id | length "
      "!= 9 %}{{ raise_exception('no id') }}{% endif %}[{{ c.function.name }} {{ c.id }}]{% endfor %}{% if "
      "m.role == "
      "'tool' %}<{{ m.tool_call_id }}>{% endif %}{% endfor %}");
  EXPECT_EQ(prompt_text(chat, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[
      {"function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"b"}]})"),
            "a[f call00001]b<call00001>");
}

TEST(ChatTemplate, RefusesWhatItDoesNotShow) {
  const ChatTemplate chatml = template_of("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}");
  const std::string user = R"({"role":"user","content":"call f"})";
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
  expect_refused(chatml, R"({"messages":[)" + user + "]" + tools + "}", "tools", "template_error",
                 "does not show");
  EXPECT_EQ(prompt_text(chatml, R"({"messages":[)" + user + "]" + tools + R"(,"tool_choice":"none"})"),
            "<user>call f");
  expect_refused(
      chatml, R"({"messages":[)" + user + R"(,{"role":"assistant","tool_calls":[{"id":"1","type":"function",
      "function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"7"}]})",
      "messages[1].tool_calls", "template_error");
  EXPECT_EQ(prompt_text(chatml, R"({"messages":[)" + user + R"(,{"role":"tool","content":"7"}]})"),
            "<user>call f<tool>7");
  const ChatTemplate users = template_of(
      "{% for m in messages %}{% if m.role == 'user' or m.role == 'assistant' %}<{{ m.content }}>{% endif "
      "%}{% endfor %}");
  expect_refused(users, R"({"messages":[)" + user + R"(,{"role":"tool","content":"7"}]})", "messages[1]",
                 "template_error", "tool");
  expect_refused(users, R"({"messages":[{"role":"system","content":"a"},)" + user + "]}", "messages[0]",
                 "template_error", "system");
  EXPECT_EQ(prompt_text(users, R"({"messages":[{"role":"system","content":" "},)" + user + "]}"), "<call f>");
  const std::string documents = R"("documents":[{"title":"t","text":"x"}])";
  expect_refused(users, R"({"messages":[)" + user + "]," + documents + "}", "documents", "template_error");
  expect_refused(users, R"({"messages":[)" + user + R"(],"chat_template_kwargs":{)" + documents + "}}",
                 "documents", "template_error");
  EXPECT_EQ(
      prompt_text(
          template_of("{{ messages[0].content }}{% for d in documents or [] %} {{ d.text }}{% endfor %}"),
          R"({"messages":[)" + user + "]," + documents + "}"),
      "call f x");
  // Other forms of a content are the template's choice.
  EXPECT_EQ(
      prompt_text(template_of("{% for m in messages %}{{ m.content | tojson }}{% endfor %}"),
                  R"({"messages":[{"role":"system","content":"a\nb"},{"role":"tool","content":"\"7\""}]})"),
      R"("a\nb""\"7\"")");
}

TEST(ChatTemplate, EffortAndKwargs) {
  const std::string messages = R"({"messages":[{"role":"user","content":"a"}])";
  const std::string begin = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n";
  const ChatTemplate plain = template_named("marked"),
                     fixed = template_named("marked", {{"reasoning_effort", "low"}});
  EXPECT_EQ(prompt_text(plain, messages + "}"), begin + "<think>\n");
  EXPECT_EQ(prompt_text(plain, messages + R"(,"reasoning_effort":"high"})"), begin + "(high)<think>\n");
  EXPECT_EQ(prompt_text(plain, messages + R"(,"reasoning_effort":"none"})"),
            begin + "(none)<think>\n</think>\n");
  EXPECT_EQ(prompt_text(plain, messages + R"(,"reasoning_effort":"none",
      "chat_template_kwargs":{"enable_thinking":true,"reasoning_effort":"some"}})"),
            begin + "(some)<think>\n");
  EXPECT_EQ(prompt_text(fixed, messages + R"(,"reasoning_effort":"high"})"), begin + "(low)<think>\n");
  EXPECT_EQ(prompt_text(fixed, messages + R"(,"chat_template_kwargs":{"reasoning_effort":"high"}})"),
            begin + "(high)<think>\n");
  EXPECT_EQ(prompt_text(plain, messages + R"(,"tool_choice":"none",
      "tools":[{"type":"function","function":{"name":"f"}}]})"),
            begin + "<think>\n");
}

TEST(ChatTemplate, OpensReasoningByItsOwnMarksOnly) {
  const ChatTemplate chat = template_named("marked");
  const auto opens = [&](const std::string& rest) {
    return chat
        .prompt(Json::parse(R"({"messages":[{"role":"user","content":"a <think> b </think>"}])" + rest))
        .opens_reasoning;
  };
  EXPECT_TRUE(opens("}"));
  EXPECT_FALSE(opens(R"(,"reasoning_effort":"none"})"));
  EXPECT_FALSE(opens(R"(,"add_generation_prompt":false})"));
  EXPECT_FALSE(template_named("calls")
                   .prompt(Json::parse(R"({"messages":[{"role":"user","content":"<think>"}]})"))
                   .opens_reasoning);
}

// Hy3's template makes its tags when it runs, and those of a user's message are none.
TEST(ChatTemplate, OpensReasoningByTagsWithASuffix) {
  const ChatTemplate chat = template_named("suffixed");
  const auto prompt = [&](const std::string& content, const std::string& rest) {
    return chat.prompt(Json::parse(R"({"messages":[{"role":"user","content":")" + content + "\"}]" + rest));
  };
  EXPECT_EQ(prompt("Hi", "}").text, "[user]Hi[assistant]<think:opensource>");
  EXPECT_TRUE(prompt("Hi", "}").opens_reasoning);
  EXPECT_TRUE(prompt("</think:opensource>", "}").opens_reasoning);
  EXPECT_FALSE(prompt("<think:opensource>", R"(,"reasoning_effort":"none"})").opens_reasoning);
  EXPECT_FALSE(prompt("<think:opensource>", R"(,"add_generation_prompt":false})").opens_reasoning);

  const std::string text = read_whole_file((template_folder() / "suffixed.jinja").string());
  EXPECT_EQ(format_of_template(text), Format::hy_v3);
}

TEST(ChatTemplate, ContinuesTheFinalMessage) {
  const auto continued = [](const char* name, const std::string& content) {
    return template_named(name).prompt(
        Json::parse(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":)" + content +
                    R"(}],"continue_final_message":true})"));
  };
  const std::string begin = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n";
  const Prompt prompt = continued("marked", R"("One, ")");
  EXPECT_EQ(prompt.text, begin + "One, ");
  ASSERT_FALSE(prompt.foreign.empty());
  EXPECT_EQ(prompt.foreign.back(), (TextRange{begin.size(), begin.size() + 5}));
  EXPECT_EQ(continued("parts", R"("One, ")").text, "<s>[user]a[/][assistant]One,");
  EXPECT_EQ(continued("parts", R"([{"type":"text","text":"x"},{"type":"text","text":"One"}])").text,
            "<s>[user]a[/][assistant](x)(One");
  EXPECT_EQ(continued("marked", R"("")").text, begin);
  expect_refused(template_named("marked"), R"({"messages":[{"role":"user","content":"a"}],
      "continue_final_message":true,"add_generation_prompt":true})",
                 "continue_final_message", "invalid_value");
  TemplateSource silent;
  silent.text = "{% for m in messages %}{{ m.role }}{{ m.content | length }}{% endfor %}";
  expect_refused(ChatTemplate(silent, {}),
                 R"({"messages":[{"role":"user","content":"a"}],"continue_final_message":true})",
                 "continue_final_message", "template_error");
}

TEST(ChatTemplate, RefusesWithTheFieldsPath) {
  const ChatTemplate chat = template_named("marked");
  const auto refused = [&](const std::string& messages, const std::string& field) {
    expect_refused(chat, R"({"messages":)" + messages + "}", field, "invalid_value");
  };
  expect_refused(chat, "{}", "messages", "invalid_value");
  refused("[]", "messages");
  refused("7", "messages");
  refused("[7]", "messages[0]");
  refused(R"([{"content":"a"}])", "messages[0].role");
  refused(R"([{"role":7}])", "messages[0].role");
  refused(R"([{"role":"function","content":"a"}])", "messages[0].role");
  refused(R"([{"role":"assistant","function_call":{}}])", "messages[0].function_call");
  refused(R"([{"role":"user","content":7}])", "messages[0].content");
  refused(R"([{"role":"user","content":"a"},{"role":"user","content":[{"type":"image_url"}]}])",
          "messages[1].content[0].type");
  refused(R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text");
  refused(R"([{"role":"user","content":["a"]}])", "messages[0].content[0]");
  refused(R"([{"role":"assistant","tool_calls":7}])", "messages[0].tool_calls");
  refused(R"([{"role":"assistant","tool_calls":[{"type":"custom"}]}])", "messages[0].tool_calls[0].type");
  refused(R"([{"role":"assistant","tool_calls":[{}]}])", "messages[0].tool_calls[0].function");
  refused(R"([{"role":"assistant","tool_calls":[{"function":{}}]}])",
          "messages[0].tool_calls[0].function.name");
  const std::string messages = R"("messages":[{"role":"user","content":"a"}]})";
  expect_refused(chat, R"({"reasoning_effort":7,)" + messages, "reasoning_effort", "invalid_value");
  expect_refused(chat, R"({"chat_template_kwargs":[],)" + messages, "chat_template_kwargs", "invalid_value");
  expect_refused(chat, R"({"chat_template_kwargs":{"messages":[]},)" + messages,
                 "chat_template_kwargs.messages", "invalid_value");
  expect_refused(chat, R"({"add_generation_prompt":"x",)" + messages, "add_generation_prompt",
                 "invalid_value");
}

TEST(ChatTemplate, TellsHowTheTemplateFailed) {
  const ChatTemplate chat = template_named("marked");
  try {
    prompt_text(chat, R"({"messages":[{"role":"poet","content":"a"}]})");
    ADD_FAILURE();
  } catch (const BadRequest& refusal) {
    EXPECT_EQ(std::string(refusal.what()), "No role poet");
    EXPECT_EQ(refusal.code, "template_error");
  }
  TemplateSource broken;
  broken.text = "{{ messages[0].no.way }}";
  expect_refused(ChatTemplate(broken, {}), R"({"messages":[{"role":"user","content":"a"}]})", "messages",
                 "template_error", "the chat template failed: ");
  broken.text = "\n{{ messages | no_such_filter }}";
  broken.origin = "there";
  try {
    ChatTemplate(broken, {});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    EXPECT_NE(std::string(error.what()).find("there:2: "), std::string::npos) << error.what();
  }
}

TEST(ChatTools, AreChecked) {
  const auto refused = [](const std::string& tools, const std::string& field) {
    try {
      checked_tools(Json::parse(R"({"tools":)" + tools + "}"));
      ADD_FAILURE() << tools;
    } catch (const BadRequest& refusal) {
      EXPECT_EQ(refusal.field, field);
      EXPECT_EQ(refusal.code, "invalid_value");
    }
  };
  refused("7", "tools");
  refused("[7]", "tools[0]");
  refused(R"([{"type":"web_search"}])", "tools[0].type");
  refused(R"([{"function":{"name":"f"}}])", "tools[0].type");
  refused(R"([{"type":"function"}])", "tools[0].function");
  refused(R"([{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"a b"}}])",
          "tools[1].function.name");
  refused(R"([{"type":"function","function":{"name":""}}])", "tools[0].function.name");
  refused(R"([{"type":"function","function":{"name":")" + std::string(129, 'a') + R"("}}])",
          "tools[0].function.name");
  refused(R"([{"type":"function","function":{"name":"f","parameters":[]}}])", "tools[0].function.parameters");
  Json many = Json::array();
  for (int i = 0; i < 129; ++i)
    many.push_back(Json::parse(R"({"type":"function","function":{"name":"f","parameters":null}})"));
  refused(many.dump(), "tools");
  many.erase(0);
  EXPECT_EQ(checked_tools(Json{{"tools", many}}), many);
  EXPECT_TRUE(checked_tools(Json::object()).is_null());
  EXPECT_TRUE(checked_tools(Json{{"tools", Json::array()}}).is_null());
  EXPECT_TRUE(offered_tools(Json{{"tools", many}, {"tool_choice", "none"}}).is_null());
}

// The writer of a message cannot write markup.
TEST(ChatTemplate, MessagesGiveNoSpecialIds) {
  const auto tokenizer =
      make_tokenizer("gguf", std::string(kSourceFolder) + "/tests/golden/gguf_small/ends.gguf");
  const auto mark = tokenizer->encode_with_special("<|im_end|>");
  ASSERT_EQ(mark.size(), 1u);
  const Prompt prompt = template_named("marked").prompt(Json::parse(
      R"({"messages":[{"role":"user","content":"x<|im_end|>y"},{"role":"assistant","content":"<|im_end|>"}],
          "tools":[{"type":"function","function":{"name":"f","description":"<|im_end|>"}}]})"));
  EXPECT_EQ(std::ranges::count(tokenizer->encode_with_special(prompt.text), mark[0]), 6);
  EXPECT_EQ(std::ranges::count(tokenizer->encode_with_special(prompt.text, prompt.foreign), mark[0]), 3);
}

// A template's marker around a known role is the template's. A role that no template knows is foreign.
TEST(ChatTemplate, MarkersMadeOfRolesAreTheTemplates) {
  TemplateSource source;
  source.text = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}";
  const ChatTemplate chat(source, {});
  const Prompt prompt = chat.prompt(Json::parse(
      R"({"messages":[{"role":"user","content":"user"},{"role":"assistant","content":"y"},{"role":"end","content":"z"}]})"));
  EXPECT_EQ(prompt.text, "<|user|>user<|assistant|>y<|end|>z");
  EXPECT_EQ(prompt.foreign, (std::vector<TextRange>{{8, 12}, {25, 26}, {28, 31}, {33, 34}}));
}

class TemplateFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("chat_template_" + std::to_string(::getpid()));
    fs::create_directories(folder_ / "tokenizer");
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  fs::path folder_;
};

TEST_F(TemplateFolder, IsSearchedInOrder) {
  EXPECT_FALSE(find_template(folder_, ""));
  write("tokenizer/chat_template.jinja", "of the checkpoint");
  EXPECT_EQ(find_template(folder_, "")->text, "of the checkpoint");
  write("tokenizer_config.json", R"({"chat_template":"of the settings","eos_token":{"content":"<e>"},
      "add_bos_token":true,"bos_token":"<b>","pad_token":null})");
  EXPECT_EQ(find_template(folder_, "")->text, "of the settings");
  EXPECT_EQ(find_template(folder_, "")->special_tokens,
            Json::parse(R"({"bos_token":"<b>","eos_token":"<e>"})"));
  write("special_tokens_map.json", R"({"eos_token":"<end>"})");
  EXPECT_EQ(find_template(folder_, "")->special_tokens.at("eos_token"), "<end>");
  write("chat_template.jinja", "of its file");
  EXPECT_EQ(find_template(folder_, "")->text, "of its file");
  const fs::path given = write("given.jinja", "given");
  EXPECT_EQ(find_template(folder_, given)->text, "given");
  EXPECT_EQ(find_template(folder_, given)->origin, given.string());
  EXPECT_EQ(find_template(folder_, given)->special_tokens.at("bos_token"), "<b>");
  EXPECT_THROW(find_template(folder_, folder_ / "nothing.jinja"), Error);
}

TEST_F(TemplateFolder, MayHaveItsTemplatesInOtherFiles) {
  write("chat_template.json", R"({"chat_template":"of the older file"})");
  EXPECT_EQ(find_template(folder_, "")->text, "of the older file");
  fs::create_directories(folder_ / "additional_chat_templates");
  write("additional_chat_templates/tool_use.jinja", "with tools");
  EXPECT_EQ(find_template(folder_, "")->tool_text, "with tools");
  EXPECT_EQ(find_template(folder_, "")->text, "of the older file");
  write("chat_template.jinja", "of its file");
  EXPECT_EQ(find_template(folder_, "")->text, "of its file");
}

TEST_F(TemplateFolder, MayHaveATemplateForTools) {
  write("tokenizer_config.json", R"({"chat_template":[{"name":"default","template":"no tools"},
      {"name":"tool_use","template":"{{ tools[0].function.name }}"}]})");
  const ChatTemplate chat(*find_template(folder_, ""), {});
  const std::string messages = R"({"messages":[{"role":"user","content":"a"}])";
  EXPECT_EQ(prompt_text(chat, messages + "}"), "no tools");
  EXPECT_EQ(prompt_text(chat, messages + R"(,"tools":[{"type":"function","function":{"name":"f"}}]})"), "f");
  write("tokenizer_config.json", R"({"chat_template":7})");
  EXPECT_THROW(find_template(folder_, ""), Error);
}

// Runs the cases in ../shared where that folder lies beside the checkout.
TEST(ChatTemplate, PublishedTemplatesAsTheGoldensHaveThem) {
  const fs::path golden = fs::path(kSourceFolder).parent_path() / "shared/golden/chat";
  if (!fs::exists(golden / "requests.json")) {
    std::cout << "no ../shared/golden/chat: published templates are not tested\n";
    GTEST_SKIP() << "no golden requests beside the repository";
  }
  const Json file = Json::parse(read_whole_file((golden / "requests.json").string()));
  std::size_t cases = 0;
  for (const Json& one : file.at("cases")) {
    SCOPED_TRACE(one.at("name").get<std::string>());
    TemplateSource source;
    source.text = read_whole_file((golden / one.at("template").get<std::string>()).string());
    source.special_tokens = one.at("special_tokens");
    ChatTemplate::Options options;
    options.now = [] {
      std::tm now{};
      now.tm_year = 126, now.tm_mon = 2, now.tm_mday = 5, now.tm_wday = 4, now.tm_yday = 63;
      now.tm_hour = 7, now.tm_min = 8, now.tm_sec = 9;
      return now;
    };
    const ChatTemplate chat(source, options);
    if (one.contains("expected"))
      EXPECT_EQ(chat.prompt(one.at("body")).text, one.at("expected").get<std::string>());
    else
      EXPECT_THROW(chat.prompt(one.at("body")), BadRequest);
    ++cases;
  }
  EXPECT_GT(cases, 0u);
  std::cout << cases << " requests of ../shared/golden/chat\n";
}

}  // namespace
}  // namespace switchyard::chat
