// Templates against what transformers with jinja2 rendered (tests/golden/chat), and against hostile input.
#include "chat/jinja/template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/testing.h"

namespace switchyard::jinja {
namespace {

using Kind = TemplateError::Kind;
namespace fs = std::filesystem;

std::string file_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream out;
  out << file.rdbuf();
  return out.str();
}

std::string name_of(Kind kind) {
  constexpr const char* kNames[] = {"syntax", "raised", "undefined", "security", "limit", "other"};
  return kNames[static_cast<int>(kind)];
}

// Prepares messages as transformers does before it renders: drops keys without a value and gives
// reasoning its two names.
Json prepared(const Json& messages) {
  Json out = Json::array();
  for (const Json& message : messages) {
    Json kept = Json::object();
    for (const auto& [key, value] : message.items()) {
      if (!value.is_null()) kept[key] = value;
    }
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      if (!kept.contains(name)) continue;
      const Json reasoning = kept[name];
      for (const char* copy : {"reasoning_content", "thinking"}) {
        if (!kept.contains(copy)) kept[copy] = reasoning;
      }
      break;
    }
    out.push_back(kept);
  }
  return out;
}

RenderOptions at_golden_time() {
  RenderOptions options;
  options.now = [] {
    std::tm now{};
    now.tm_year = 126;
    now.tm_mon = 2;
    now.tm_mday = 5;
    now.tm_hour = 7;
    now.tm_min = 8;
    now.tm_sec = 9;
    now.tm_wday = 4;
    now.tm_yday = 63;
    return now;
  };
  return options;
}

// continue_final_message: the text ends with the last message's content.
std::string cut_after_last(std::string text, const Json& messages) {
  const Json& last = messages.back();
  std::string content;
  if (last.contains("content") && last["content"].is_string()) content = last["content"].get<std::string>();
  const auto end = content.find_last_not_of(" \t\n\r\f\v");
  content = end == std::string::npos ? "" : content.substr(0, end + 1);
  const auto begin = content.find_first_not_of(" \t\n\r\f\v");
  if (begin != std::string::npos) content = content.substr(begin);
  const auto at = text.rfind(content);
  return at == std::string::npos ? text : text.substr(0, at + content.size());
}

// Empty where the case is right.
std::string problem_of(const Json& golden, const Json& one, const std::string& text) {
  Json trusted = golden["special_tokens"], foreign;
  const Json messages = prepared(one["messages"]);
  foreign["messages"] = messages;
  foreign["tools"] = one["tools"];
  trusted["documents"] = nullptr;
  trusted["add_generation_prompt"] = false;
  bool cuts = false;
  for (const auto& [key, value] : one["kwargs"].items()) {
    if (key == "continue_final_message") {
      cuts = value.get<bool>();
    } else {
      foreign[key] = value;
    }
  }
  const std::string wanted = one.contains("expected") ? one["expected"].get<std::string>()
                                                      : "error " + one["error"]["error"].get<std::string>();
  std::string got;
  try {
    got = Template::parse(text).render(trusted, foreign, at_golden_time()).text;
    if (cuts) got = cut_after_last(got, messages);
  } catch (const TemplateError& error) {
    got = "error " + name_of(error.kind);
    if (got != wanted) got += std::string(": ") + error.what();
    if (error.kind == Kind::raised && one.contains("error") && one["error"]["message"] != error.what()) {
      got += std::string(" with the text ") + error.what();
    }
  }
  if (got == wanted) return "";
  return one["name"].get<std::string>() + "\n  expected " + wanted + "\n  got      " + got;
}

void check_file(const fs::path& path, std::size_t& cases) {
  const Json golden = Json::parse(file_text(path));
  for (const Json& one : golden["cases"]) {
    const std::string text =
        golden.contains("template")
            ? file_text(path.parent_path().parent_path() / golden["template"].get<std::string>())
            : one["template"].get<std::string>();
    EXPECT_EQ(problem_of(golden, one, text), "") << path.filename();
    ++cases;
  }
}

TEST(Jinja, RendersEveryConstructAsTransformersDoes) {
  std::size_t cases = 0;
  check_file(fs::path(kSourceFolder) / "tests/golden/chat/render/constructs.json", cases);
  EXPECT_GE(cases, 99u);
}

// The published templates are other people's: they are read where they lie beside the repository.
TEST(Jinja, RendersPublishedTemplatesAsTransformersDoes) {
  const fs::path folder = fs::path(kSourceFolder).parent_path() / "shared/golden/chat/render";
  if (!fs::exists(folder)) GTEST_SKIP() << "no published templates beside the repository";
  std::size_t cases = 0;
  for (const auto& entry : fs::directory_iterator(folder)) check_file(entry.path(), cases);
  EXPECT_GE(cases, 400u);
}

std::string rendered(const std::string& text, const Json& foreign = Json::object()) {
  return Template::parse(text).render(Json::object(), foreign, {}).text;
}

// Expected: what transformers 5.24 with Jinja2 3.1.6 renders.
TEST(Jinja, EscapesWhatIsJoinedToMarkup) {
  const Json golden = Json::parse(file_text(fs::path(kSourceFolder) / "tests/golden/chat/markup.json"));
  EXPECT_GE(golden["cases"].size(), 80u);
  for (const Json& one : golden["cases"])
    EXPECT_EQ(rendered(one["template"], {{"t", golden["t"]}}), one["expected"].get<std::string>())
        << one["template"];
}

// The text with its foreign ranges in brackets.
std::string marked(const std::string& text, const Json& foreign) {
  const Json trusted = {{"t", "trusted"}};
  const Rendered out = Template::parse(text).render(trusted, foreign, {});
  std::string marks;
  std::size_t at = 0;
  for (const TextRange& range : out.foreign) {
    marks += out.text.substr(at, range.begin - at) + "[" +
             out.text.substr(range.begin, range.end - range.begin) + "]";
    at = range.end;
  }
  return marks + out.text.substr(at);
}

// The text with what its `generation` blocks printed in brackets.
std::string generated(const std::string& text) {
  const Rendered out = Template::parse(text).render(Json::object(), Json::object(), {});
  std::string marks;
  std::size_t at = 0;
  for (const TextRange& range : out.generated) {
    marks += out.text.substr(at, range.begin - at) + "[" +
             out.text.substr(range.begin, range.end - range.begin) + "]";
    at = range.end;
  }
  return marks + out.text.substr(at);
}

TEST(Jinja, TellsWhatGenerationBlocksPrint) {
  EXPECT_EQ(generated("a{% generation %}b{{ 1 }}{% endgeneration %}c"), "a[b1]c");
  EXPECT_EQ(generated("{% for i in [1, 2] %}{{ i }}{% generation %}x{% endgeneration %}{% endfor %}"),
            "1[x]2[x]");
  EXPECT_EQ(generated("{% generation %}{% endgeneration %}a"), "[]a");
  // A block that makes a value has no place in the text yet.
  EXPECT_EQ(generated("{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ m() }}"), "x");
  EXPECT_EQ(generated("{% set v %}{% generation %}x{% endgeneration %}{% endset %}{{ v }}"), "x");
  EXPECT_TRUE(Template::parse("{% generation %}{% endgeneration %}").marks_generation());
  EXPECT_FALSE(Template::parse("{% block a %}{% endblock %}").marks_generation());
}

Kind failure(const std::string& text, const Json& foreign = Json::object(),
             const RenderOptions& options = {}) {
  try {
    Template::parse(text).render(Json::object(), foreign, options);
  } catch (const TemplateError& error) {
    return error.kind;
  }
  ADD_FAILURE() << "no error: " << text.substr(0, 100);
  return Kind::other;
}

std::string repeated(const std::string& text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

TEST(Jinja, TracksForeignTextExactlyWhereItIsOnlyMoved) {
  const Json foreign = {{"f", " ab,cd "}, {"é", 1}, {"m", {{{"content", "<|x|>"}}}}};
  EXPECT_EQ(marked("<{{ f }}>{{ t }}", foreign), "<[ ab,cd ]>trusted");
  EXPECT_EQ(marked("{{ 'a' + f + 'b' }}", foreign), "a[ ab,cd ]b");
  EXPECT_EQ(marked("{{ 'a' ~ f ~ 1 }}", foreign), "a[ ab,cd ]1");
  EXPECT_EQ(marked("{{ ('x' + f + 'y')[2:5] }}", foreign), "[ab,]");
  EXPECT_EQ(marked("{{ ('x' + f + 'y')[::-1] }}", foreign), "y[ dc,ba ]x");
  EXPECT_EQ(marked("-{{ f.strip() }}-{{ f|trim }}-", foreign), "-[ab,cd]-[ab,cd]-");
  EXPECT_EQ(marked("{{ f.split(',') | join('|') }}", foreign), "[ ab]|[cd ]");
  EXPECT_EQ(marked("{{ f.replace('b', 'X') }}", foreign), "[ a]X[,cd ]");
  EXPECT_EQ(marked("{{ 'q_q'.replace('_', f) }}", foreign), "q[ ab,cd ]q");
  EXPECT_EQ(marked("{% for c in f %}{{ c }}.{% endfor %}", foreign), "[ ].[a].[b].[,].[c].[d].[ ].");
  EXPECT_EQ(marked("{% set x %}<{{ m[0].content }}>{% endset %}{{ x }}", foreign), "<[<|x|>]>");
  EXPECT_EQ(marked("{% macro g(a) %}({{ a }}){% endmacro %}{{ g(f[1]) }}", foreign), "([a])");
  EXPECT_EQ(marked("{% filter indent(2, true) %}a{{ f }}{% endfilter %}", foreign), "  a[ ab,cd ]");
}

TEST(Jinja, TakesAllForForeignWhereLengthsChange) {
  const Json foreign = {{"f", "ab\n"}, {"m", {{"k\"", {1, "v"}}}}};
  EXPECT_EQ(marked("{{ ('x' + f)|upper }}", foreign), "[XAB\n]");
  EXPECT_EQ(marked("{{ f|tojson }}", foreign), "\"[ab\\n]\"");
  EXPECT_EQ(marked("{{ m|tojson }}", foreign), "{\"[k\\\"]\": [1, \"[v]\"]}");
  EXPECT_EQ(marked("{{ [f, t] }}", foreign), "[['ab\\n'], 'trusted']");
  EXPECT_EQ(marked("{{ '{}-{}'.format(f, t) }}", foreign), "[ab\n]-trusted");
  EXPECT_EQ(marked("{{ '%5s|' % f }}", foreign), "[  ab\n]|");
  EXPECT_EQ(marked("{{ 'x' if f == 'ab\n' and 'a' in f }}", foreign), "x");
}

TEST(Jinja, NamesThatItReads) {
  const auto names =
      Template::parse(
          "{% for m in messages %}{{ m.content }}{{ loop.index }}{{ x }}{% endfor %}"
          "{% set y = 1 %}{{ y }}{% macro f(a) %}{{ a }}{{ z }}{% endmacro %}{{ f(range(3)) }}")
          .free_names();
  EXPECT_EQ(names, (std::set<std::string>{"messages", "x", "z"}));
}

TEST(Jinja, ChangesListsWhereThatIsAllowed) {
  RenderOptions options;
  options.allow_mutation = true;
  const auto text =
      "{% set l = [1] %}{% set _ = l.append(2) %}{{ l }}{{ l.pop(0) }}{{ l }}{% set d = {} %}"
      "{% set _ = d.update(a=1) %}{{ d }}";
  EXPECT_EQ(Template::parse(text).render({}, {}, options).text, "[1, 2]1[2]{'a': 1}");
  // A list within itself ends with the rendering, and cannot be printed.
  EXPECT_EQ(failure("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", {}, options), Kind::limit);
}

TEST(Jinja, StopsAtItsLimits) {
  const std::string loops =
      "{% for a in range(9999) %}{% for b in range(9999) %}{{ '' }}{% endfor %}{% endfor %}";
  EXPECT_EQ(failure(loops), Kind::limit);
  EXPECT_EQ(failure("{{ 'a' * 10000000000 }}"), Kind::limit);
  EXPECT_EQ(failure("{{ [0] * 10000000000 }}"), Kind::limit);
  EXPECT_EQ(failure("{{ 'a'|center(10000000000) }}"), Kind::limit);
  EXPECT_EQ(failure("{{ '%10000000000d' % 1 }}"), Kind::limit);
  EXPECT_EQ(failure("{{ '{:>10000000000}'.format('a') }}"), Kind::limit);
  EXPECT_EQ(failure("{% set n = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set n.s = n.s + n.s "
                    "%}{% endfor %}"),
            Kind::limit);
  EXPECT_EQ(failure("{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% "
                    "endfor %}{{ n.l }}"),
            Kind::limit);
  EXPECT_EQ(failure("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), Kind::limit);
  EXPECT_EQ(failure("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}"), Kind::limit);
}

TEST(Jinja, NestsValuesWithoutAnEnd) {
  // Ten million deep would be a crash of a destructor that recurses.
  const std::string deep =
      "{% set n = namespace(l=[]) %}{% for a in range(99999) %}{% set n.l = [n.l] %}{% endfor %}";
  EXPECT_EQ(rendered(deep + "x"), "x");
  EXPECT_EQ(failure(deep + "{{ n.l }}"), Kind::limit);
  EXPECT_EQ(failure(deep + "{{ n.l|tojson }}"), Kind::limit);
  EXPECT_EQ(failure(deep + "{{ n.l == [n.l] }}"), Kind::limit);
  Json nested = Json::array();
  for (int i = 0; i < 100'000; ++i) {
    Json outer = Json::array();
    outer.push_back(std::move(nested));
    nested = std::move(outer);
  }
  Json context = Json::object();
  context["x"] = std::move(nested);
  EXPECT_EQ(failure("{{ x }}", context), Kind::limit);
  EXPECT_EQ(rendered("{{ y is defined }}", context), "False");
}

TEST(Jinja, RefusesTemplatesThatAreNestedTooDeep) {
  for (const char* open : {"(", "[", "{1:", "not ", "-", "f(", "a[", "1 if 1 else ", "a is eq "}) {
    EXPECT_EQ(failure("{{ " + repeated(open, 100'000)), Kind::syntax) << open;
  }
  EXPECT_EQ(failure(repeated("{% if 1 %}", 100'000)), Kind::syntax);
  EXPECT_EQ(failure(repeated("{% for a in b %}", 100'000)), Kind::syntax);
  EXPECT_EQ(failure("{{ a" + repeated(".b", 100'000) + " }}"), Kind::syntax);
  EXPECT_EQ(failure("{{ 'a'" + repeated("|upper", 100'000) + " }}"), Kind::syntax);
  EXPECT_EQ(rendered("{{ 0" + repeated(" + 1", 50'000) + " }}"), "50000");
  EXPECT_EQ(rendered("{{ 1" + repeated(" and 1", 50'000) + " }}"), "1");
}

TEST(Jinja, KeepsIntegersOf64Bits) {
  const Json context = {{"big", 18446744073709551615u}, {"low", INT64_MIN}};
  EXPECT_EQ(rendered("{{ big }} {{ low|tojson }} {{ big - 1 }}", context),
            "18446744073709551615 -9223372036854775808 18446744073709551614");
  EXPECT_EQ(failure("{{ big + 1 }}", context), Kind::other);
  EXPECT_EQ(failure("{{ 2 ** 70 }}"), Kind::other);
  EXPECT_EQ(failure("{{ low // -1 * 4 }}", context), Kind::other);
}

TEST(Jinja, SaysWhereAnErrorIs) {
  try {
    rendered("a\nb\n{% if true %}\n{{ 1 / 0 }}{% endif %}");
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_EQ(error.line, 4);
  }
  try {
    Template::parse("a\n{{ b|nosuch }}");
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_EQ(error.line, 2);
    EXPECT_STREQ(error.what(), "No filter named 'nosuch'.");
  }
}

TEST(Jinja, RefusesWhatIsNoUtf8) {
  EXPECT_EQ(failure("\xff"), Kind::syntax);
  EXPECT_EQ(failure("{{ x }}", {{"x", "\xff"}}), Kind::other);
}

}  // namespace
}  // namespace switchyard::jinja
