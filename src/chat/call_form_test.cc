#include "chat/call_form.h"

#include "core/testing.h"

namespace switchyard::chat {
namespace {

Json tools_with_every_type() {
  return Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
    "properties": {"text": {"type": "string"}, "count": {"type": "integer"}, "list": {"$ref": "#/$defs/list"}},
    "required": ["count"], "$defs": {"list": {"type": "array"}}}}},
    {"type": "function", "function": {"name": "now"}}])");
}

// An answer in the form: a call of each tool, with every argument.
std::string written(const CallForm& form) {
  std::string text = form.begin;
  std::size_t number = 0;
  for (const ToolCallForm& call : form.calls) {
    if (number > 0 && !form.several) break;
    if (number > 0) text += form.separator;
    text += call.begin + (form.numbered ? std::to_string(number) : "") + call.after_number;
    if (!form.one_by_one) text += call.name == "f" ? R"({"text": "a b", "count": 3, "list": [1]})" : "{}";
    for (std::size_t i = 0; i < call.parameters.size(); ++i) {
      const CallParameter& parameter = call.parameters[i];
      const std::string values[] = {parameter.is_text ? "a b" : "\"a b\"", "3", "[1]"};
      text += (i > 0 ? form.parameter_separator : "") + parameter.begin + values[i] + parameter.end;
    }
    text += call.end;
    ++number;
  }
  return text + form.end;
}

// The parser reads every answer that a form allows as calls.
TEST(CallForm, ParserReadsWhatTheFormWrites) {
  for (const char* name :
       {"hermes", "qwen3_coder", "mimo", "glm4", "hy_v3", "hy_v3_preview", "ernie4_5", "minimax_m2",
        "deepseek_v3", "deepseek_v3_1", "kimi_k2", "harmony", "mistral", "llama3_json", "llama4_pythonic"}) {
    for (const char* shown : {"", "[ARGS] </arg_key><arg_value>"}) {
      const Format format = format_named(name);
      const CallForm form = call_form(format, tools_with_every_type(), shown);
      const std::string text = written(form);
      SCOPED_TRACE(std::string(name) + ": " + text);
      EXPECT_TRUE(text.starts_with(form.marker));
      AnswerParser parser(format, tools_with_every_type(), false);
      std::vector<Delta> deltas = parser.add(text);
      for (const Delta& delta : parser.finish(TextEnd::stop)) deltas.push_back(delta);
      ASSERT_GE(deltas.size(), 2u);
      EXPECT_EQ(parser.calls(), form.several ? 2u : 1u);
      EXPECT_EQ(deltas[0].name, "f");
      EXPECT_EQ(deltas[1].text, R"({"text": "a b", "count": 3, "list": [1]})");
      for (const Delta& delta : deltas) EXPECT_NE(delta.kind, Delta::Kind::content) << delta.text;
    }
  }
}

// The tags are those that the makers' templates write around a call.
TEST(CallForm, TagsOfHy3AndMimo) {
  const CallForm hy = call_form(Format::hy_v3, tools_with_every_type());
  EXPECT_EQ(hy.begin, "<tool_calls:opensource>\n");
  EXPECT_EQ(hy.end, "\n</tool_calls:opensource>");
  EXPECT_EQ(hy.calls.at(0).begin, "<tool_call:opensource>f<tool_sep:opensource>\n");
  EXPECT_EQ(hy.calls[0].parameters.at(0).begin,
            "<arg_key:opensource>text</arg_key:opensource>\n<arg_value:opensource>");
  EXPECT_EQ(hy.calls[0].parameters[0].end_tag, "</arg_value:opensource>");
  EXPECT_EQ(call_form(Format::hy_v3_preview, tools_with_every_type()).calls.at(1).begin,
            "<tool_call>now<tool_sep>\n");
  const CallForm mimo = call_form(Format::mimo, tools_with_every_type());
  EXPECT_EQ(mimo.calls.at(0).parameters.at(0).begin, "<parameter=text>");
  EXPECT_EQ(mimo.calls[0].parameters[0].end, "</parameter>\n");
}

TEST(CallForm, ParametersHaveSchemas) {
  const CallForm form = call_form(Format::glm4, tools_with_every_type());
  ASSERT_EQ(form.calls.at(0).parameters.size(), 3u);
  EXPECT_TRUE(form.calls[0].parameters[0].is_text);
  EXPECT_FALSE(form.calls[0].parameters[0].required);
  EXPECT_TRUE(form.calls[0].parameters[1].required);
  EXPECT_EQ(form.calls[0].parameters[2].schema["$defs"]["list"]["type"], "array");
  EXPECT_TRUE(form.calls[1].parameters.empty());
  EXPECT_TRUE(call_form(Format::think, tools_with_every_type()).calls.empty());
}

TEST(CallForm, EndsOfReasoningAndOfTexts) {
  EXPECT_EQ(reasoning_end(Format::glm4), "</think>");
  EXPECT_EQ(reasoning_end(Format::mistral), "[/THINK]");
  EXPECT_EQ(reasoning_end(Format::harmony), "<|channel|>final<|message|>");
  EXPECT_EQ(reasoning_end(Format::none), "");
  EXPECT_EQ(reasoning_begin(Format::hy_v3), "<think:opensource>");
  EXPECT_EQ(reasoning_end(Format::hy_v3), "</think:opensource>");
  EXPECT_EQ(reasoning_begin(Format::ernie4_5), "<think>");
  EXPECT_EQ(reasoning_begin(Format::harmony), "");
  EXPECT_EQ(end_texts(Format::harmony).size(), 2u);
  EXPECT_TRUE(end_texts(Format::hermes).empty());
}

TEST(CallForm, IdsHaveTheFormatsLength) {
  std::mt19937_64 random(1);
  const std::string id = make_call_id(Format::hermes, random);
  EXPECT_TRUE(id.starts_with("call_") && id.size() == 29) << id;
  EXPECT_EQ(make_call_id(Format::mistral, random).size(), 9u);
  EXPECT_NE(make_call_id(Format::hermes, random), id);
}

}  // namespace
}  // namespace switchyard::chat
