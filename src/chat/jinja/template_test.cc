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

// What transformers does to messages before it renders: keys without a value go, and reasoning has two names.
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
    const std::string text = golden.contains("template")
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

}  // namespace
}  // namespace switchyard::jinja
