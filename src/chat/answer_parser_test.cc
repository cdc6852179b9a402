#include "chat/answer_parser.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>

#include "core/testing.h"

namespace switchyard::chat {
namespace {

namespace fs = std::filesystem;

// Deltas joined: what a client has of an answer.
struct Joined {
  struct Call {
    std::string name, id, arguments;
    bool operator==(const Call&) const = default;
  };
  std::string content, reasoning;
  std::vector<Call> calls;
  bool operator==(const Joined&) const = default;

  void add(const std::vector<Delta>& deltas) {
    for (const Delta& delta : deltas) {
      switch (delta.kind) {
        case Delta::Kind::content:
          content += delta.text;
          break;
        case Delta::Kind::reasoning:
          reasoning += delta.text;
          break;
        case Delta::Kind::call:
          ASSERT_EQ(delta.index, calls.size());
          calls.push_back({delta.name, delta.id, ""});
          break;
        case Delta::Kind::arguments:
          ASSERT_LT(delta.index, calls.size());
          calls[delta.index].arguments += delta.text;
      }
    }
  }
};

void PrintTo(const Joined& joined, std::ostream* out) {
  *out << "content <" << joined.content << "> reasoning <" << joined.reasoning << ">";
  for (const auto& call : joined.calls)
    *out << " call " << call.name << " id " << call.id << " <" << call.arguments << ">";
}

Json tools_of_tests() {
  return Json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties":
    {"text": {"type": "string"}, "count": {"type": "integer"}, "any": {"anyOf": [{"type": "string"},
    {"type": "null"}]}, "list": {"$ref": "#/$defs/list"}}, "$defs": {"list": {"type": "array"}}}}},
    {"type": "function", "function": {"name": "now"}}])");
}

struct Case {
  Format format = Format::none;
  Json tools;
  std::string text;
  bool opened = false;
  TextEnd end = TextEnd::stop;
};

Joined parse_in(const Case& one, const std::vector<std::string>& pieces) {
  AnswerParser parser(one.format, one.tools, one.opened);
  Joined joined;
  for (const std::string& piece : pieces) joined.add(parser.add(piece));
  joined.add(parser.finish(one.end));
  EXPECT_EQ(parser.calls(), joined.calls.size());
  return joined;
}

// The bytes one by one, which cuts characters, too.
std::vector<std::string> bytes_of(const std::string& text) {
  std::vector<std::string> pieces;
  for (char c : text) pieces.emplace_back(1, c);
  return pieces;
}

std::vector<std::string> cut(const std::string& text, std::mt19937& random) {
  std::vector<std::string> pieces;
  for (std::size_t at = 0; at < text.size(); at += pieces.back().size())
    pieces.push_back(text.substr(at, 1 + random() % 12));
  return pieces;
}

Joined parse(Format format, const std::string& text, TextEnd end = TextEnd::stop, bool opened = false) {
  const Case one{format, tools_of_tests(), text, opened, end};
  const Joined whole = parse_in(one, {text});
  EXPECT_EQ(parse_in(one, bytes_of(text)), whole) << text;
  return whole;
}

std::string arguments_of(Format format, const std::string& text, TextEnd end = TextEnd::stop) {
  const Joined joined = parse(format, text, end);
  return joined.calls.size() == 1 ? joined.calls[0].arguments : fmt::format("{} calls", joined.calls.size());
}

// The text without white space outside of JSON texts.
std::string without_space(const std::string& json) {
  std::string result;
  bool in_text = false, escaped = false;
  for (char c : json) {
    if (in_text || (c != ' ' && c != '\n' && c != '\t')) result += c;
    if (c == '"' && !escaped) in_text = !in_text;
    escaped = in_text && c == '\\' && !escaped;
  }
  return result;
}

void expect_arguments(const std::string& given, const std::string& expected, TextEnd end) {
  if (end == TextEnd::length) {
    EXPECT_TRUE(without_space(expected).starts_with(without_space(given))) << given << "\nof " << expected;
    return;
  }
  const Json value = Json::parse(given, nullptr, false);
  EXPECT_FALSE(value.is_discarded()) << given;
  EXPECT_EQ(value.dump(), Json::parse(expected).dump());
}

std::string text_or_empty(const Json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

void expect_case(const Json& expected, const Joined& joined, TextEnd end) {
  EXPECT_EQ(joined.content, text_or_empty(expected["content"]));
  EXPECT_EQ(joined.reasoning, text_or_empty(expected["reasoning_content"]));
  ASSERT_EQ(joined.calls.size(), expected["tool_calls"].size());
  for (std::size_t i = 0; i < joined.calls.size(); ++i) {
    const Json& call = expected["tool_calls"][i];
    EXPECT_EQ(joined.calls[i].name, call["name"].get<std::string>());
    if (call.contains("id")) {
      EXPECT_EQ(joined.calls[i].id, call["id"].get<std::string>());
    }
    expect_arguments(joined.calls[i].arguments, call["arguments"], end);
  }
}

std::size_t expect_golden_file(const fs::path& path, std::mt19937& random) {
  std::ifstream file(path);
  const Json golden = Json::parse(file);
  for (const Json& one : golden["cases"]) {
    SCOPED_TRACE(fmt::format("{} {}", path.string(), one["name"].get<std::string>()));
    const Case in{format_named(golden["format"].get<std::string>()), golden["tools"], one["text"],
                  one["opened"], one["end"] == "length" ? TextEnd::length : TextEnd::stop};
    const Joined whole = parse_in(in, {in.text});
    expect_case(one["expected"], whole, in.end);
    EXPECT_EQ(parse_in(in, one["chunks"]), whole);
    EXPECT_EQ(parse_in(in, bytes_of(in.text)), whole);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(parse_in(in, cut(in.text, random)), whole);
  }
  return golden["cases"].size();
}

std::size_t expect_golden_folder(const fs::path& folder) {
  std::mt19937 random(1);
  std::size_t cases = 0;
  for (const auto& entry : fs::directory_iterator(folder)) cases += expect_golden_file(entry.path(), random);
  return cases;
}

TEST(AnswerParser, AgreesWithGoldens) {
  EXPECT_GE(expect_golden_folder(fs::path(kSourceFolder) / "tests/golden/chat/parsers"), 128u);
  const fs::path shared = fs::path(kSourceFolder) / "../shared/golden/chat/parsers";
  if (!fs::exists(shared)) return;
  const std::size_t cases = expect_golden_folder(shared);
  EXPECT_GT(cases, 0u);
  fmt::print("{} cases of {}\n", cases, fs::weakly_canonical(shared).string());
}

// A golden case cut in two at each place gives what the whole gives, where content stands between tags, too.
TEST(AnswerParser, CutsAtEachPlaceChangeNothing) {
  for (const char* name : {"hy_v3", "hy_v3_preview", "mimo", "ernie4_5", "kimi_k2"}) {
    std::ifstream file(fs::path(kSourceFolder) / "tests/golden/chat/parsers" / (std::string(name) + ".json"));
    const Json golden = Json::parse(file);
    for (const Json& tools : {golden["tools"], Json(nullptr)}) {
      for (const Json& one : golden["cases"]) {
        const Case in{format_named(name), tools, one["text"], one["opened"],
                      one["end"] == "length" ? TextEnd::length : TextEnd::stop};
        const Joined whole = parse_in(in, {in.text});
        for (std::size_t at = 1; at < in.text.size(); ++at)
          EXPECT_EQ(parse_in(in, {in.text.substr(0, at), in.text.substr(at)}), whole) << in.text << at;
      }
    }
  }
}

TEST(AnswerParser, FormatsHaveNames) {
  EXPECT_EQ(name_of(Format::llama4_pythonic), "llama4_pythonic");
  EXPECT_EQ(format_named("kimi_k2"), Format::kimi_k2);
  EXPECT_THROW(format_named("kimi"), Error);
}

TEST(AnswerParser, ATemplatesTextChoosesTheFormat) {
  const std::pair<const char*, Format> kCases[] = {
      {"{{ 'Hi' }}", Format::none},
      {"x</think>", Format::think},
      {"<tool_call> </think>", Format::hermes},
      {"<tool_call><arg_key></think>", Format::glm4},
      {"<tool_call>\n<function=", Format::qwen3_coder},
      {"<minimax:tool_call>", Format::minimax_m2},
      {"a<｜tool▁sep｜>", Format::deepseek_v3_1},
      {"'function<｜tool▁sep｜>' <｜tool▁sep｜>", Format::deepseek_v3},
      {"tool['type'] + '<｜tool▁sep｜>' + name + '```json'", Format::deepseek_v3},
      {"'<function=' ~ f ~ '>' '<parameter=' ~ k ~ '>' ~ v ~ '</parameter>'", Format::mimo},
      {"\"<function=\" \"<parameter=\" \"</parameter>\"", Format::mimo},
      {"Write '</parameter>'. '<function=' '<parameter=' ~ k ~ '>\\n' ~ v ~ '\\n</parameter>'",
       Format::qwen3_coder},
      {"'</parameter>' <function=f>\n<parameter=k>\nv\n</parameter>", Format::qwen3_coder},
      {"'<tool_sep{}>'.format(suffix) '<arg_key{}>'", Format::hy_v3},
      {"<tool_sep:opensource><arg_key:opensource>", Format::hy_v3},
      {"<tool_call><tool_sep><arg_key></think>", Format::hy_v3_preview},
      {"<think> <tool_call> '<response>\\n' '</response>'", Format::ernie4_5},
      {"<tool_call> <tool_response> </think>", Format::hermes},
      {"<|tool_calls_section_begin|>", Format::kimi_k2},
      {"<|channel|>", Format::harmony},
      {"[TOOL_CALLS]", Format::mistral},
      {"<|header_start|>", Format::llama4_pythonic},
      {"\"parameters\"", Format::llama3_json}};
  for (const auto& [text, format] : kCases) EXPECT_EQ(format_of_template(text), format) << text;
}

// After each byte the parser has given all content but the end that may still become a marker.
TEST(AnswerParser, GivesWhatNoLaterTextTakesBack) {
  AnswerParser parser(Format::hermes, tools_of_tests(), false);
  Joined joined;
  const auto after = [&](std::string_view piece) {
    joined.add(parser.add(piece));
    return joined;
  };
  EXPECT_EQ(after(" <th").content, "");
  EXPECT_EQ(after("e a \n").content, " <the a");
  EXPECT_EQ(after("b <tool").content, " <the a \nb");
  EXPECT_EQ(after("s <too").content, " <the a \nb <tools");
  EXPECT_EQ(after("l_call> {\"name\": \"no").calls.size(), 0u);
  EXPECT_EQ(after("w\", \"arguments\" :").calls.size(), 0u);
  EXPECT_EQ(after(" {").calls.at(0).name, "now");
  EXPECT_EQ(after("\"a\": \"b").calls.at(0).arguments, "{\"a\": \"b");
  EXPECT_FALSE(parser.first_call_is_whole());
  EXPECT_EQ(after("\"}}").calls.at(0).arguments, "{\"a\": \"b\"}");
  EXPECT_TRUE(parser.first_call_is_whole());
  EXPECT_EQ(after("</tool_call> \nx").content, " <the a \nb <toolsx");
  EXPECT_TRUE(parser.finish(TextEnd::stop).empty());
}

TEST(AnswerParser, StreamsTextArguments) {
  AnswerParser parser(Format::qwen3_coder, tools_of_tests(), false);
  Joined joined;
  joined.add(parser.add("<tool_call>\n<function=f>\n<parameter=text>\nab\"\n"));
  EXPECT_EQ(joined.calls.at(0).arguments, "{\"text\": \"ab\\\"");
  joined.add(parser.add("c</para"));
  EXPECT_EQ(joined.calls.at(0).arguments, "{\"text\": \"ab\\\"\\nc");
}

TEST(AnswerParser, KnowsWhetherItReasons) {
  AnswerParser parser(Format::think, nullptr, true);
  EXPECT_TRUE(parser.in_reasoning());
  parser.add("a</think>");
  EXPECT_FALSE(parser.in_reasoning());
  AnswerParser harmony(Format::harmony, nullptr, false);
  harmony.add("<|channel|>analysis<|message|>a");
  EXPECT_TRUE(harmony.in_reasoning());
  harmony.add("<|end|>");
  EXPECT_FALSE(harmony.in_reasoning());
}

TEST(AnswerParser, Reasoning) {
  EXPECT_EQ(parse(Format::think, "  <think> a \n </think> \n").reasoning, "a");
  EXPECT_EQ(parse(Format::think, "  <think> a \n </think> \n").content, "");
  EXPECT_EQ(parse(Format::think, " \n").content, " \n");
  EXPECT_EQ(parse(Format::think, "a</thi", TextEnd::length, true).reasoning, "a</thi");
  EXPECT_EQ(parse(Format::mistral, "a[/THINK]b", TextEnd::stop, true).content, "b");
  EXPECT_EQ(parse(Format::none, "<think>a", TextEnd::stop, true).content, "<think>a");
}

TEST(AnswerParser, WhatIsNoCallIsContent) {
  for (const char* text :
       {"a <tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>", "<tool_call>{\"arguments\": {}}",
        "<tool_call>", " <tool_call>{\"name\": \"", "<tool_call>{\"name\": \"\", \"arguments\": {}}",
        "<tool_call>[]</tool_call>", "<tool_call>{\"name\" \"f\"}", "<tool_call>{} </tool_call>\n"})
    EXPECT_EQ(parse(Format::hermes, text).content, text);
  for (const char* text : {"<tool_call> is a tag", "<tool_call>\n<function=f> is", "<tool_call>\n<function=f",
                           "<tool_call>\n<function=>\n</function>"})
    EXPECT_EQ(parse(Format::qwen3_coder, text).content, text);
  for (const char* text :
       {"<tool_call>{\"name\": \"f\"}", "<tool_call></tool_call>", "<tool_call>f x</tool_call>"})
    EXPECT_EQ(parse(Format::glm4, text).content, text);
  for (const char* text : {"[TOOL_CALLS][]", "[TOOL_CALLS] [1]", "[TOOL_CALLS]f[ARGS] no", "[TOOL_CALLS]f g"})
    EXPECT_EQ(parse(Format::mistral, text).content, text);
  for (const char* text :
       {"[", "[]", "[f]", "[g(a=1)]", "[f(1)]", "<|python_start|>f()", "[f(a b=1)]", "a [now()]"})
    EXPECT_EQ(parse(Format::llama4_pythonic, text).content, text);
  for (const char* text :
       {"<|python_tag|>print(1)", "{\"name\": \"f\", \"parameters\": 1}", "x {\"name\": \"f\"}"})
    EXPECT_EQ(parse(Format::llama3_json, text).content, text);
  for (const char* text :
       {"<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a b",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>[]<｜tool▁call▁end｜>"})
    EXPECT_EQ(parse(Format::deepseek_v3_1, text).content, text);
}

TEST(AnswerParser, ContentTagsAreReasonings) {
  const std::string text = "<think>x</think>\n<response>\na\n</response>\n";
  AnswerParser parser(Format::ernie4_5, nullptr, false, false);
  Joined joined;
  joined.add(parser.add(text));
  joined.add(parser.finish(TextEnd::stop));
  EXPECT_EQ(joined.content, text);
  EXPECT_EQ(joined.reasoning, "");
}

// The parser holds back a line end and what may begin the end tag, and gives all else at once.
TEST(AnswerParser, StreamsTaggedContent) {
  AnswerParser parser(Format::ernie4_5, nullptr, true);
  Joined joined;
  joined.add(parser.add("x</think>\n\n<resp"));
  EXPECT_EQ(joined.content, "");
  joined.add(parser.add("onse>\na\n\nb\n"));
  EXPECT_EQ(joined.content, "a\n\nb");
  joined.add(parser.add("</re"));
  EXPECT_EQ(joined.content, "a\n\nb");
  joined.add(parser.add("al>"));
  EXPECT_EQ(joined.content, "a\n\nb\n</real>");
  EXPECT_FALSE(parser.in_reasoning());
}

TEST(AnswerParser, CallsWithoutArguments) {
  EXPECT_EQ(arguments_of(Format::hermes, "<tool_call>{\"name\": \"f\"}</tool_call>"), "{}");
  EXPECT_EQ(arguments_of(Format::hermes, "<tool_call>{\"name\": \"f\"", TextEnd::length), "");
  EXPECT_EQ(arguments_of(Format::mistral, "[TOOL_CALLS]f[ARGS]"), "{}");
  EXPECT_EQ(arguments_of(Format::glm4, "<tool_call>f</tool_call>"), "{}");
  EXPECT_EQ(arguments_of(Format::glm4, "<tool_call>f"), "{}");
  EXPECT_EQ(arguments_of(Format::harmony, "<|channel|>commentary to=functions.f<|message|><|call|>"), "{}");
  EXPECT_EQ(arguments_of(Format::deepseek_v3_1,
                         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜>"),
            "{}");
  EXPECT_EQ(arguments_of(Format::deepseek_v3,
                         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
                         "f\n```json\n```<｜tool▁call▁end｜>"),
            "{}");
  EXPECT_EQ(arguments_of(Format::llama4_pythonic, "[now( )]"), "{}");
  EXPECT_EQ(arguments_of(Format::llama4_pythonic, "[now("), "{}");
}

TEST(AnswerParser, TextBehindCalls) {
  EXPECT_EQ(parse(Format::hermes, "a\n<tool_call>{\"name\": \"f\"}</tool_call>\n b\n").content, "ab\n");
  EXPECT_EQ(parse(Format::hermes, "<tool_call>{\"name\": \"f\"}}\n</tool_call>\n").content, "");
  EXPECT_EQ(parse(Format::hermes, "<tool_call>{\"name\": \"f\"}</tool_c").content, "");
  EXPECT_EQ(parse(Format::glm4, "<tool_call>now</tool_call>b").content, "b");
  EXPECT_EQ(parse(Format::qwen3_coder, "<tool_call><function=now></function></tool_call>b").content, "b");
  EXPECT_EQ(parse(Format::mistral, "[TOOL_CALLS]f[ARGS]{} b [TOOL_CALLS]now[ARGS]{}").content, "");
  EXPECT_EQ(parse(Format::mistral, "[TOOL_CALLS]f[ARGS]{} b [TOOL_CALLS]now[ARGS]{}").calls.size(), 2u);
  EXPECT_EQ(parse(Format::llama3_json, "{\"name\": \"f\", \"parameters\": {}} b").content, "");
  EXPECT_EQ(parse(Format::llama4_pythonic, "[now()] b").content, "");
  EXPECT_EQ(
      parse(Format::hermes, "<tool_call>{\"name\": \"f\"}\n<tool_call>{\"name\": \"now\"}").calls.size(), 2u);
}

TEST(AnswerParser, ValuesTakeTheirTypesFromTheSchema) {
  const auto value = [](const std::string& key, const std::string& text) {
    return arguments_of(Format::minimax_m2, "<minimax:tool_call><invoke name=\"f\"><parameter name=\"" + key +
                                                "\">" + text + "</parameter></invoke></minimax:tool_call>");
  };
  EXPECT_EQ(value("text", "12"), "{\"text\": \"12\"}");
  EXPECT_EQ(value("other", "a\t\\\x01"), "{\"other\": \"a\\t\\\\\\u0001\"}");
  EXPECT_EQ(value("count", " 12\n"), "{\"count\": 12}");
  EXPECT_EQ(value("count", "1.5"), "{\"count\": \"1.5\"}");
  EXPECT_EQ(value("count", "3.0"), "{\"count\": 3.0}");
  EXPECT_EQ(value("count", "null"), "{\"count\": \"null\"}");
  EXPECT_EQ(value("any", "None"), "{\"any\": null}");
  EXPECT_EQ(value("any", "1"), "{\"any\": \"1\"}");
  EXPECT_EQ(value("list", "[1, \"</b>\"]"), "{\"list\": [1, \"</b>\"]}");
  EXPECT_EQ(value("list", "[1"), "{\"list\": \"[1\"}");
}

// A call of f with an empty object, in each format, and what stands around its name.
struct Written {
  Format format;
  std::string before, after;
};
std::vector<Written> written_calls() {
  return {
      {Format::hermes, "<tool_call>\n{\"name\": \"", "\", \"arguments\": {}}\n</tool_call>"},
      {Format::qwen3_coder, "<tool_call>\n<function=", ">\n</function>\n</tool_call>"},
      {Format::mimo, "<tool_call>\n<function=", "></function>\n</tool_call>"},
      {Format::ernie4_5, "<tool_call>\n{\"name\": \"", "\", \"arguments\": {}}\n</tool_call>"},
      {Format::hy_v3, "<tool_calls:opensource>\n<tool_call:opensource>",
       "<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"},
      {Format::hy_v3_preview, "<tool_calls>\n<tool_call>", "<tool_sep>\n</tool_call>\n</tool_calls>"},
      {Format::glm4, "<tool_call>", "\n</tool_call>"},
      {Format::minimax_m2, "<minimax:tool_call>\n<invoke name=\"", "\">\n</invoke>\n</minimax:tool_call>"},
      {Format::deepseek_v3_1, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
       "<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {Format::deepseek_v3, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
       "\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {Format::kimi_k2, "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
       ":0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"},
      {Format::harmony, "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>{}"},
      {Format::mistral, "[TOOL_CALLS]", "[ARGS]{}"},
      {Format::mistral, "[TOOL_CALLS][{\"name\": \"", "\", \"arguments\": {}}]"},
      {Format::llama3_json, "{\"name\": \"", "\", \"parameters\": {}}"},
      {Format::llama4_pythonic, "[", "()]"}};
}

TEST(AnswerParser, OnlyOfferedToolsAreCalled) {
  for (const Written& one : written_calls()) {
    const std::string known = one.before + "f" + one.after, other = one.before + "g" + one.after;
    EXPECT_EQ(parse(one.format, known).calls.size(), 1u) << known;
    EXPECT_EQ(parse(one.format, other).content, other);
    for (const Json& tools : {Json(nullptr), Json::array()}) {
      const Case without{one.format, tools, known, false, TextEnd::stop};
      EXPECT_EQ(parse_in(without, {known}).content, known);
      EXPECT_EQ(parse_in(without, bytes_of(known)).content, known);
    }
  }
}

TEST(AnswerParser, ACallOfAnotherToolAmongCallsIsContent) {
  const auto both = [](Format format, const std::string& text) {
    const Joined joined = parse(format, text);
    EXPECT_EQ(joined.calls.size(), 1u) << text;
    EXPECT_NE(joined.content.find('g'), std::string::npos) << joined.content;
  };
  both(Format::hermes, "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"g\"}</tool_call>");
  both(Format::kimi_k2,
       "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|>"
       "<|tool_call_begin|>g<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>");
  both(Format::minimax_m2,
       "<minimax:tool_call><invoke name=\"g\"></invoke><invoke name=\"f\"></invoke></minimax:tool_call>");
  both(Format::mistral, "[TOOL_CALLS]g[ARGS]{}[TOOL_CALLS]f[ARGS]{}");
  both(Format::llama4_pythonic, "[f(), g()]");
}

TEST(AnswerParser, AnEndTagEndsBrokenArguments) {
  const auto hermes = [](const std::string& arguments, TextEnd end = TextEnd::stop) {
    return arguments_of(Format::hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": " + arguments, end);
  };
  EXPECT_EQ(hermes("{\"text\": \"Rome\"\n</tool_call>"), "{\"text\": \"Rome\"}");
  EXPECT_EQ(hermes("{\"text\": \"Rome\"}\n</tool_call>"), "{\"text\": \"Rome\"}");
  EXPECT_EQ(hermes("{\"text\": [1, {\"a\": true,\n</tool_call>"), "{\"text\": [1, {\"a\": true}]}");
  EXPECT_EQ(hermes("{\"text\": \"Rome}\n</tool_call>"), "{\"text\": \"Rome}\\n\"}");
  EXPECT_EQ(hermes("{\"text\": </tool_call>"), "{\"text\": null}");
  EXPECT_EQ(hermes("{\"text\"</tool_call>"), "{\"text\": null}");
  EXPECT_EQ(hermes("{\"text\": \"Ro"), "{\"text\": \"Ro\"}");
  EXPECT_EQ(hermes("{\"text\": \"Ro", TextEnd::length), "{\"text\": \"Ro");
  EXPECT_EQ(hermes("{\"text\": \"a</tool_call>b\"}}\n</tool_call>"), "{\"text\": \"a</tool_call>b\"}");
  EXPECT_EQ(hermes("{\"text\": \"a\nb\", \"x\": True,}}\n</tool_call>"),
            "{\"text\": \"a\\nb\", \"x\": true}");
  EXPECT_EQ(hermes("null}</tool_call>"), "{}");
  EXPECT_EQ(hermes("{'a': 1}}\n</tool_call>"), "{'a': 1}");  // no JSON: as it was written
  EXPECT_EQ(
      arguments_of(Format::kimi_k2,
                   "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
                   "{\"text\": \"Rome\"<|tool_call_end|><|tool_calls_section_end|>"),
      "{\"text\": \"Rome\"}");
  EXPECT_EQ(arguments_of(Format::deepseek_v3,
                         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
                         "{\"text\": \"Rome\"\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
            "{\"text\": \"Rome\"}");
  EXPECT_EQ(arguments_of(Format::harmony,
                         "<|channel|>commentary to=functions.f<|message|>{\"text\": \"Rome\"<|call|>"),
            "{\"text\": \"Rome\"}");
  EXPECT_EQ(arguments_of(Format::mistral, "[TOOL_CALLS]f[ARGS]{\"text\": \"Rome\""), "{\"text\": \"Rome\"}");
}

TEST(AnswerParser, ABrokenCallTakesNoOtherWithIt) {
  const std::string whole = "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  for (const char* broken :
       {"{\"text\": \"Rome\"", "{\"text\": \"Rome", "{\"text\": \"Rome\"}", "{\"text\": \"Rome}}"}) {
    const std::string text =
        "<tool_call>\n{\"name\": \"f\", \"arguments\": " + std::string(broken) + "\n</tool_call>\n" + whole;
    const Joined joined = parse(Format::hermes, text);
    ASSERT_EQ(joined.calls.size(), 2u) << text;
    EXPECT_TRUE(Json::accept(joined.calls[0].arguments)) << joined.calls[0].arguments;
    EXPECT_EQ(joined.calls[1].arguments, "{\"a\": 1}");
    EXPECT_EQ(joined.content, "");
  }
}

TEST(AnswerParser, ForgottenTagsOfCalls) {
  const auto expect_call = [](Format format, const std::string& text, const std::string& content = "") {
    const Joined joined = parse(format, text);
    ASSERT_EQ(joined.calls.size(), 1u) << text;
    EXPECT_EQ(joined.calls[0].name, "f");
    EXPECT_EQ(joined.calls[0].arguments, "{\"text\": \"Trier\"}") << text;
    EXPECT_EQ(joined.content, content);
  };
  const std::string qwen = "<function=f>\n<parameter=text>\nTrier\n</parameter>\n</function>";
  expect_call(Format::qwen3_coder, qwen);
  expect_call(Format::qwen3_coder, "I shall look.\n\n" + qwen + "\n</tool_call>", "I shall look.");
  expect_call(Format::qwen3_coder, "<tool_call>\n" + qwen);
  expect_call(Format::qwen3_coder,
              "<tool_call>\n<function=f>\n<parameter=text>\nTrier\n</function>\n</tool_call>");
  expect_call(Format::qwen3_coder, "<tool_call>\n<function=f>\n<parameter=text>\nTrier");
  expect_call(Format::glm4, "f\n<arg_key>text</arg_key>\n<arg_value>Trier</arg_value>\n</tool_call>");
  expect_call(Format::glm4, "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>Trier</arg_value>");
  expect_call(Format::glm4, "<tool_call>f\n<arg_key>text</arg_key><arg_value>Trier</tool_call>");
  expect_call(Format::minimax_m2, "<invoke name=\"f\"><parameter name=\"text\">Trier</parameter></invoke>");
  expect_call(Format::minimax_m2,
              "<invoke name=\"f\"><parameter name=\"text\">Trier</parameter></minimax:tool_call>");
  const std::string hy = "<tool_call>f<tool_sep>\n<arg_key>text</arg_key>\n<arg_value>Trier";
  expect_call(Format::hy_v3_preview, hy + "</arg_value>\n</tool_call>\n</tool_calls>");
  expect_call(Format::hy_v3_preview, "<tool_calls>\n" + hy + "</arg_value>\n</tool_calls>");
  expect_call(Format::hy_v3_preview, "<tool_calls>\n" + hy + "</arg_value>");
  expect_call(Format::hy_v3_preview, "<tool_calls>\n" + hy + "</tool_call>\n</tool_calls>");
  expect_call(Format::hy_v3_preview, "<tool_calls>\n" + hy);
  expect_call(Format::mimo, "<function=f><parameter=text>Trier</parameter></function>");
  expect_call(Format::mimo, "<tool_call><function=f><parameter=text>Trier</function></tool_call>");
  expect_call(Format::ernie4_5, "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"Trier\"");
  const std::string arguments = "{\"text\": \"Trier\"}";
  expect_call(Format::kimi_k2, "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>" + arguments);
  expect_call(Format::deepseek_v3_1,
              "<｜tool▁call▁begin｜>f<｜tool▁sep｜>" + arguments + "<｜tool▁call▁end｜>");
  expect_call(Format::mistral, "f[ARGS]" + arguments);
  for (const char* text : {"A call begins with <function=NAME> and has no more.", "Write <function=f> first.",
                           "<function=g>\n</function>"})
    EXPECT_EQ(parse(Format::qwen3_coder, text).content, text);
  const Joined two = parse(Format::glm4, "<tool_call>now\n<tool_call>f\n</tool_call>");
  EXPECT_EQ(two.calls.size(), 2u);
}

// Templates of families whose markup is that of another family.
TEST(AnswerParser, FamiliesThatShareAForm) {
  const std::string laguna =
      "<available_tools>\n'<tool_call>' ~ name ~ '\\n<arg_key>' ~ key ~ '</arg_key>\\n'\n"
      "'<assistant>\\n' ~ ('<think>' if enable_thinking else '</think>')";
  EXPECT_EQ(format_of_template(laguna), Format::glm4);
  const std::string step =
      "'<tool_call>\\n<function=' + name + '>\\n' '<parameter=' + key + '>\\n'\n"
      "value '\\n</parameter>\\n' '<|im_start|>assistant\\n<think>\\n'";
  EXPECT_EQ(format_of_template(step), Format::qwen3_coder);
  const std::string small = "'[THINK]' '[/THINK]' '[TOOL_CALLS]' + name + '[ARGS]' + arguments";
  EXPECT_EQ(format_of_template(small), Format::mistral);

  const std::string arguments = "<arg_key>text</arg_key><arg_value>a\nb</arg_value>";
  const Joined glm =
      parse(Format::glm4, "x</think>\n<tool_call>f" + arguments + "</tool_call><tool_call>now</tool_call>",
            TextEnd::stop, true);
  ASSERT_EQ(glm.calls.size(), 2u);
  EXPECT_EQ(glm.calls[0].arguments, "{\"text\": \"a\\nb\"}");
  EXPECT_EQ(glm.reasoning, "x");
  const Joined stepped = parse(Format::qwen3_coder,
                               "x\n</think>\n<tool_call>\n<function=f>\n<parameter=text>\na\n</parameter>\n"
                               "<parameter=count>\n7\n</parameter>\n</function>\n</tool_call><tool_call>\n"
                               "<function=now>\n</function>\n</tool_call>",
                               TextEnd::stop, true);
  ASSERT_EQ(stepped.calls.size(), 2u);
  EXPECT_EQ(stepped.calls[0].arguments, "{\"text\": \"a\", \"count\": 7}");
  EXPECT_EQ(stepped.reasoning, "x");
  const Joined mistral =
      parse(Format::mistral, "[THINK]x[/THINK][TOOL_CALLS]f[ARGS]{\"text\": \"a\"}[TOOL_CALLS]now[ARGS]{}");
  ASSERT_EQ(mistral.calls.size(), 2u);
  EXPECT_EQ(mistral.reasoning, "x");
}

TEST(AnswerParser, TagsWithinJsonTextsAreText) {
  EXPECT_EQ(arguments_of(Format::minimax_m2,
                         "<minimax:tool_call><invoke name=\"f\"><parameter name=\"list\">[\"</parameter>\", "
                         "\"</invoke>\"]</parameter></invoke></minimax:tool_call>"),
            "{\"list\": [\"</parameter>\", \"</invoke>\"]}");
  EXPECT_EQ(arguments_of(Format::qwen3_coder,
                         "<tool_call><function=f><parameter=text>\n</function> <parameter=a>\n</parameter>"
                         "</function></tool_call>"),
            "{\"text\": \"</function> <parameter=a>\"}");
}

TEST(AnswerParser, TypesOfMixedValues) {
  const Json tools =
      Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
    "properties": {"a": {"type": ["string", "integer"], "enum": ["1", "2"]}, "b": {"type": "string", "nullable": true},
    "c": {"allOf": [{"type": ["string", "integer"]}, {"type": "string"}]}, "d": {"$ref": "#/$defs/x~1y"}},
    "$defs": {"x/y": {"type": "integer"}}}}}])");
  const std::string text =
      "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key><arg_value>null</"
      "arg_value>"
      "<arg_key>c</arg_key><arg_value>5</arg_value><arg_key>d</arg_key><arg_value>7</arg_value></tool_call>";
  const Joined joined = parse_in({Format::glm4, tools, text, false, TextEnd::stop}, {text});
  ASSERT_EQ(joined.calls.size(), 1u);
  EXPECT_EQ(joined.calls[0].arguments, R"({"a": "1", "b": null, "c": "5", "d": 7})");
}

TEST(AnswerParser, PythonLiterals) {
  const auto value = [](const std::string& text, TextEnd end = TextEnd::stop) {
    return arguments_of(Format::llama4_pythonic, "[f(a=" + text, end);
  };
  EXPECT_EQ(value("'x', b = [])]"), R"({"a": "x", "b": []})");
  EXPECT_EQ(value("'\\n\\x41\\u00e9\\U0001f600\\q\\0')]"), R"({"a": "\n\u0041\u00e9\ud83d\ude00\\q\u0000"})");
  EXPECT_EQ(value("''' it's \"'' ''')]"), R"({"a": " it's \"'' "})");
  EXPECT_EQ(value("('', 1_000, .5, 5., 1.e5, -0x1f, +2, True, None,),)]"),
            R"({"a": ["", 1000, 0.5, 5.0, 1.0e5, -31, 2, true, null]})");
  EXPECT_EQ(value("{'k': {}, 1: ()})]"), R"({"a": {"k": {}, "1": []}})");
  EXPECT_EQ(value("{'k': 'ab"), R"({"a": {"k": "ab"}})");
  EXPECT_EQ(value("{'k': 'ab", TextEnd::length), R"({"a": {"k": "ab)");
  EXPECT_EQ(value("1", TextEnd::length), "");
  EXPECT_EQ(value("{'k'"), R"({"a": {"k": null}})");
  EXPECT_EQ(value("g(1))]"), R"({"a": "g"})");
}

TEST(AnswerParser, HarmonyMessages) {
  EXPECT_EQ(parse(Format::harmony, "Hi <there>").content, "Hi <there>");
  EXPECT_EQ(parse(Format::harmony, " to=functions.f<|channel|>commentary<|message|>{}").calls.at(0).name,
            "f");
  EXPECT_EQ(parse(Format::harmony, "<|channel|>final<|message|>a<|return|>b").content, "a");
  EXPECT_EQ(parse(Format::harmony, "<|channel|>anal", TextEnd::length).content, "");
  EXPECT_EQ(parse(Format::harmony, "a<|end|>b", TextEnd::stop, true).reasoning, "a");
  EXPECT_EQ(parse(Format::harmony, "a<|start|>assistant<|channel|>final<|message|>b").content, "a\nb");
  EXPECT_EQ(parse(Format::harmony, "<|channel|>commentary to=functions.f<|message|>no").content,
            "<|channel|>commentary to=functions.f<|message|>no");
}

// A text that is held for long, and markers that come to nothing, are not read again and again.
TEST(AnswerParser, TakesLinearTime) {
  const std::size_t kCount = 200'000;
  std::string markers, held = "<tool_call>{\"a\": \"";
  for (std::size_t i = 0; i < kCount; ++i) markers += "<tool_call>\n<", held += "<tool_call>";
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& text : {markers, held}) {
    for (Format format : {Format::hermes, Format::qwen3_coder, Format::glm4}) {
      AnswerParser parser(format, tools_of_tests(), false);
      std::size_t given = 0;
      const auto count = [&](const std::vector<Delta>& deltas) {
        for (const Delta& delta : deltas) given += delta.text.size();
      };
      for (std::size_t at = 0; at < text.size(); at += 7)
        count(parser.add(std::string_view(text).substr(at, 7)));
      count(parser.finish(TextEnd::stop));
      EXPECT_EQ(given, text.size());
    }
  }
  // Seconds, where a quadratic reader needs hours.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(2));
}

}  // namespace
}  // namespace switchyard::chat
