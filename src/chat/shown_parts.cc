#include "chat/shown_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace switchyard::chat {
namespace {

[[noreturn]] void refuse_hidden(const std::string& field, const std::string& what) {
  throw BadRequest(field, fmt::format("{}: the model's chat template does not show {}", field, what),
                   "template_error");
}

bool is_given(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null() && !found->empty();
}

class ShownParts {
 public:
  ShownParts(const Json& given, const std::string& prompt, const TemplateShows& shows,
             const RenderAgain& render)
      : given_(given), prompt_(prompt), shows_(shows), render_(render) {}

  void check_tools() const {
    if (shows_.tools || !is_given(given_, "tools")) return;
    if (is_same([](Json& given) { given["tools"] = nullptr; }))
      refuse_hidden("tools", "tools, so the model would not know of them");
  }

  void check_documents() const {
    if (is_given(given_, "documents") && is_same([](Json& given) { given["documents"] = nullptr; }))
      refuse_hidden("documents", "documents");
  }

  void check_message(std::size_t i) const {
    const Json& message = given_.at("messages")[i];
    const std::string field = fmt::format("messages[{}]", i), role = message.at("role");
    if (is_given(message, "tool_calls") && !(shows_.calls && has_calls(message.at("tool_calls"))) &&
        is_same([&](Json& given) { given["messages"][i].erase("tool_calls"); }))
      refuse_hidden(field + ".tool_calls", "calls of tools");
    if (role != "system" && role != "developer" && role != "tool") return;
    const bool shown = role == "tool" ? shows_.results : shows_.system;
    if (!is_given(message, "content") || is_blank(message.at("content"))) return;
    if (shown && has_content(message.at("content"))) return;
    const auto change = [&](Json& given) {
      Json& content = given["messages"][i]["content"];
      Json& text = content.is_array() ? content.back()["text"] : content;
      text = text.get<std::string>() + " ANOTHER_TEXT";
    };
    if (is_same(change)) refuse_hidden(field, fmt::format("this message of the role {}", role));
  }

 private:
  bool has(const std::string& text) const { return prompt_.find(text) != std::string::npos; }

  bool has_calls(const Json& calls) const {
    for (const Json& call : calls) {
      if (!has(call.at("function").at("name").get<std::string>())) return false;
    }
    return true;
  }

  static bool is_blank(const Json& content) {
    if (content.is_string())
      return content.get_ref<const std::string&>().find_first_not_of(" \t\r\n") == std::string::npos;
    return std::ranges::all_of(content, [](const Json& part) { return is_blank(part.at("text")); });
  }

  // Templates take white space off.
  bool has_content(const Json& content) const {
    if (content.is_array()) {
      for (const Json& part : content) {
        if (!has_content(part.at("text"))) return false;
      }
      return true;
    }
    constexpr const char* kSpace = " \t\r\n";
    const auto text = content.get<std::string>();
    const std::size_t begin = text.find_first_not_of(kSpace);
    return begin == std::string::npos || has(text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin));
  }

  template <typename Change>
  bool is_same(const Change& change) const {
    Json other = given_;
    change(other);
    const std::optional<std::string> text = render_(other);
    return text && *text == prompt_;
  }

  const Json& given_;
  const std::string& prompt_;
  const TemplateShows& shows_;
  const RenderAgain& render_;
};

}  // namespace

void refuse_what_is_not_shown(const Json& given, const std::string& prompt, const TemplateShows& shows,
                              const RenderAgain& render) {
  const ShownParts parts(given, prompt, shows, render);
  parts.check_tools();
  parts.check_documents();
  for (std::size_t i = 0; i < given.at("messages").size(); ++i) parts.check_message(i);
}

}  // namespace switchyard::chat
