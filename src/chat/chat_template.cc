#include "chat/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "chat/continued_text.h"
#include "chat/formats/table.h"
#include "chat/messages.h"
#include "chat/shown_parts.h"
#include "chat/template_repairs.h"
#include "chat/tools.h"
#include "core/error.h"
#include "core/json_file.h"

namespace switchyard::chat {

struct ChatTemplate::Parsed {
  std::string text;
  jinja::Template program;
  TemplateTakes takes = {};
  TemplateShows shows = {};
};

namespace {

constexpr const char *kMessages = "messages", *kTools = "tools", *kDocuments = "documents",
                     *kAddGeneration = "add_generation_prompt", *kContinue = "continue_final_message";

// The value of a key; null where it is not there.
Json value_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? Json(nullptr) : *found;
}

bool flag_of(const Json& value, const std::string& field, bool absent) {
  if (value.is_null()) return absent;
  if (!value.is_boolean())
    throw BadRequest(field, fmt::format("{}: expected true or false", field), "invalid_value");
  return value.get<bool>();
}

// Renders small requests to learn what a template takes.
class TemplateProbe {
 public:
  TemplateProbe(const jinja::Template& program, const Json& trusted, const jinja::RenderOptions& options)
      : program_(program), trusted_(trusted), options_(options) {}

  TemplateTakes takes(const std::string& text) const {
    TemplateTakes takes;
    takes.parts = takes_parts();
    find_form_of_calls(takes);
    const auto broken = with_call("probe", takes.calls_without_content ? Json() : Json(""), kProbedText);
    takes.argument_texts = broken && broken->find(kProbedText) != std::string::npos;
    takes.developer = text.find("developer") != std::string::npos;
    return takes;
  }

  TemplateShows shows(const TemplateTakes& takes) const {
    const auto has = [](const std::optional<std::string>& text, const char* part) {
      return text && text->find(part) != std::string::npos;
    };
    const Json user{{"role", "user"}, {"content", "x"}}, system{{"role", "system"}, {"content", kProbedText}};
    const Json tool{
        {"type", "function"},
        {"function", Json{{"name", "probed_tool"},
                          {"description", "d"},
                          {"parameters", Json{{"type", "object"}, {"properties", Json::object()}}}}}};
    TemplateShows shows;
    shows.tools = has(rendered(Json::array({user}), Json::array({tool})), "probed_tool");
    shows.system = has(rendered(Json::array({system, user}), nullptr), kProbedText);
    const Json object{{"PROBE", "value"}}, text = R"({"PROBE": "value"})";
    const auto call = with_call("probed_call", takes.calls_without_content ? Json() : Json(""),
                                takes.argument_objects ? object : text);
    shows.calls = has(call, "probed_call");
    shows.results = has(call, kProbedResult);
    return shows;
  }

 private:
  static constexpr const char *kProbedText = "PROBED_TEXT", *kProbedResult = "PROBED_RESULT";

  // None where the template fails.
  std::optional<std::string> rendered(Json messages, Json tools) const {
    const Json foreign{{kMessages, std::move(messages)},
                       {kTools, std::move(tools)},
                       {kDocuments, nullptr},
                       {kAddGeneration, true}};
    try {
      return program_.render(trusted_, foreign, options_).text;
    } catch (const jinja::TemplateError&) {
      return {};
    }
  }

  bool takes_parts() const {
    const Json part{{"type", "text"}, {"text", "PROBE"}};
    const auto text =
        rendered(Json::array({Json{{"role", "user"}, {"content", Json::array({part})}}}), nullptr);
    return text && text->find("PROBE") != std::string::npos && text->find("'type'") == std::string::npos &&
           text->find("\"type\"") == std::string::npos;
  }

  std::optional<std::string> with_call(const std::string& name, const Json& content,
                                       const Json& arguments) const {
    const Json call{{"type", "function"},
                    {"id", "abcdefghi"},
                    {"function", Json{{"name", name}, {"arguments", arguments}}}};
    const Json parameters{{"type", "object"}, {"properties", Json{{"PROBE", Json{{"type", "string"}}}}}};
    const Json tool{{"type", "function"},
                    {"function", Json{{"name", "probe"}, {"description", "d"}, {"parameters", parameters}}}};
    return rendered(
        Json::array({Json{{"role", "user"}, {"content", "x"}},
                     Json{{"role", "assistant"}, {"content", content}, {"tool_calls", Json::array({call})}},
                     Json{{"role", "tool"},
                          {"content", kProbedResult},
                          {"name", "probe"},
                          {"tool_call_id", "abcdefghi"}}}),
        Json::array({tool}));
  }

  // The probe asks both questions again without content where a call is not shown beside content that is "".
  void find_form_of_calls(TemplateTakes& takes) const {
    const Json object{{"PROBE", "value"}}, text = R"({"PROBE": "value"})";
    takes.argument_objects = takes_objects("");
    if (shows_call("", takes.argument_objects ? object : text)) return;
    const bool shows_object = takes_objects(nullptr) && shows_call(nullptr, object);
    if (!shows_object && !shows_call(nullptr, text)) return;
    takes.calls_without_content = true;
    takes.argument_objects = shows_object;
  }

  bool takes_objects(const Json& content) const {
    const auto text = with_call("probe", content, Json{{"PROBE", "value"}});
    return text && text->find("'PROBE': 'value'") == std::string::npos;
  }

  bool shows_call(const Json& content, const Json& arguments) const {
    const auto text = with_call("probed_call", content, arguments);
    return text && text->find("probed_call") != std::string::npos;
  }

  const jinja::Template& program_;
  const Json& trusted_;
  const jinja::RenderOptions& options_;
};

// Returns the names that a request gives the template beside its messages and tools.
Json request_names(const Json& body, const Json& fixed) {
  Json names = Json::object();
  if (const Json effort = value_at(body, "reasoning_effort"); !effort.is_null()) {
    if (!effort.is_string())
      throw BadRequest("reasoning_effort", "reasoning_effort: expected a text", "invalid_value");
    if (effort == "none") names["enable_thinking"] = false;
    names["reasoning_effort"] = effort;
  }
  // The command line's are trusted and stand elsewhere; what the request says less strongly makes room.
  for (const auto& [name, value] : fixed.items()) names.erase(name);
  const Json kwargs = value_at(body, "chat_template_kwargs");
  if (kwargs.is_null()) return names;
  if (!kwargs.is_object())
    throw BadRequest("chat_template_kwargs", "chat_template_kwargs: expected an object", "invalid_value");
  for (const auto& [name, value] : kwargs.items()) {
    if (name == kMessages || name == kTools)
      throw BadRequest("chat_template_kwargs." + name,
                       fmt::format("chat_template_kwargs.{0}: send {0} as a field of the request", name),
                       "invalid_value");
    names[name] = value;
  }
  return names;
}

bool is_opening(std::string_view text, const std::vector<TextRange>& foreign) {
  const auto last = [&](std::string_view tag) {
    for (std::size_t at = text.rfind(tag); at != std::string::npos;
         at = at == 0 ? std::string::npos : text.rfind(tag, at - 1)) {
      const bool trusted = std::ranges::none_of(
          foreign, [&](const TextRange& range) { return range.begin < at + tag.size() && at < range.end; });
      if (trusted) return static_cast<std::ptrdiff_t>(at);
    }
    return std::ptrdiff_t{-1};
  };
  std::ptrdiff_t begin = -1, end = -1;
  for (const formats::TagPair& tags : formats::reasoning_tags()) {
    begin = std::max(begin, last(tags.begin));
    end = std::max(end, last(tags.end));
  }
  return begin > end;
}

jinja::RenderOptions render_options(const ChatTemplate::Options& options) {
  jinja::RenderOptions rendering;
  rendering.now = options.now;
  rendering.allow_mutation = options.allow_mutation;
  // Templates make markers of a role, as '<|' + message.role + '|>', which are theirs.
  rendering.choices = {{"role", {"system", "developer", "user", "assistant", "tool"}}};
  return rendering;
}

// Renders what a request gives the template.
class Rendering {
 public:
  Rendering(const jinja::Template& program, const Json& trusted, const ChatTemplate::Options& options)
      : program_(program), trusted_(trusted), options_(render_options(options)) {}

  // Fills in optional members where the template fails without them. BadRequest.
  jinja::Rendered rendered_or_refused(Json& given) const {
    try {
      return program_.render(trusted_, given, options_);
    } catch (const jinja::TemplateError& error) {
      if (std::optional<jinja::Rendered> repaired = with_repairs(given)) return std::move(*repaired);
      refuse(error, given);
    }
  }

  std::optional<std::string> text(const Json& given) const {
    try {
      return program_.render(trusted_, given, options_).text;
    } catch (const jinja::TemplateError&) {
      return {};
    }
  }

 private:
  std::optional<jinja::Rendered> with_repairs(Json& given) const {
    Json repaired = given;
    for (const Repair repair : template_repairs()) {
      const Json before = repaired;
      repair(repaired);
      if (repaired == before) continue;
      try {
        jinja::Rendered rendered = program_.render(trusted_, repaired, options_);
        given = std::move(repaired);
        return rendered;
      } catch (const jinja::TemplateError&) {
      }
    }
    return {};
  }

  // Names the tool without which the template does not fail.
  [[noreturn]] void refuse(const jinja::TemplateError& error, const Json& given) const {
    const bool raised = error.kind == jinja::TemplateError::Kind::raised;
    const std::string message = (raised ? "" : "the chat template failed: ") + std::string(error.what());
    const Json tools = value_at(given, kTools);
    for (std::size_t i = 0; i < tools.size(); ++i) {
      Json others = given;
      others[kTools].erase(i);
      if (others[kTools].empty()) others[kTools] = nullptr;
      if (!text(others)) continue;
      const std::string field = fmt::format("tools[{}].function", i);
      throw BadRequest(field, fmt::format("{}: {}", field, message), "template_error");
    }
    throw BadRequest(kMessages, message, "template_error");
  }

  const jinja::Template& program_;
  const Json& trusted_;
  const jinja::RenderOptions options_;
};

// Reads the documents of a request's body: a list of objects.
void read_documents(const Json& body, Json& names) {
  const Json documents = value_at(body, kDocuments);
  if (documents.is_null()) return;
  if (names.contains(kDocuments))
    throw BadRequest(kDocuments, "documents: chat_template_kwargs has documents, too", "invalid_value");
  names[kDocuments] = documents;
}

void check_documents(const Json& names) {
  if (!names.contains(kDocuments) || names.at(kDocuments).is_null()) return;
  const Json& documents = names.at(kDocuments);
  if (!documents.is_array() ||
      !std::ranges::all_of(documents, [](const Json& document) { return document.is_object(); }))
    throw BadRequest(kDocuments, "documents: expected a list of objects", "invalid_value");
}

}  // namespace

ChatTemplate::ChatTemplate(TemplateSource source, Options options)
    : source_(std::move(source)), options_(std::move(options)) {
  Json trusted = source_.special_tokens;
  trusted.update(options_.kwargs);
  const jinja::RenderOptions rendering = render_options(options_);
  const auto parsed = [&](const std::string& text) {
    try {
      Parsed made{text, jinja::Template::parse(text)};
      const TemplateProbe probe(made.program, trusted, rendering);
      made.takes = probe.takes(text);
      made.shows = probe.shows(made.takes);
      return std::make_shared<const Parsed>(std::move(made));
    } catch (const jinja::TemplateError& error) {
      fail_usage("[chat] {}:{}: {}", source_.origin, error.line, error.what());
    }
  };
  plain_ = parsed(source_.text);
  with_tools_ = source_.tool_text.empty() ? plain_ : parsed(source_.tool_text);
}

bool ChatTemplate::marks_generation(const Json& body) const {
  return (offered_tools(body).is_null() ? *plain_ : *with_tools_).program.marks_generation();
}

Prompt ChatTemplate::prompt(const Json& body) const {
  if (!body.is_object()) throw BadRequest("", "expected an object", "invalid_value");
  Json tools = offered_tools(body);
  const Parsed& parsed = tools.is_null() ? *plain_ : *with_tools_;
  Json messages = template_messages(body, parsed.takes);

  Json foreign = request_names(body, options_.kwargs);
  read_documents(body, foreign);
  check_documents(foreign);
  const auto choice = [&](const char* name, bool absent) {
    const bool named = foreign.contains(name);
    const std::string field = named ? std::string("chat_template_kwargs.") + name : name;
    return flag_of(named ? foreign.at(name) : value_at(body, name), field, absent);
  };
  const bool continues = choice(kContinue, false), adds = choice(kAddGeneration, !continues);
  if (continues && adds)
    throw BadRequest(kContinue, "continue_final_message and add_generation_prompt exclude each other",
                     "invalid_value");
  foreign.erase(kContinue);
  Json trusted = source_.special_tokens;
  trusted.update(options_.kwargs);
  trusted[kAddGeneration] = adds;
  foreign.erase(kAddGeneration);
  if (!foreign.contains(kDocuments)) trusted[kDocuments] = nullptr;
  std::string final_text;
  if (continues) final_text = mark_final_message(messages, parsed.text);
  foreign[kMessages] = std::move(messages);
  foreign[kTools] = std::move(tools);

  const Rendering rendering(parsed.program, trusted, options_);
  jinja::Rendered rendered = rendering.rendered_or_refused(foreign);
  refuse_what_is_not_shown(foreign, rendered.text, parsed.shows,
                           [&](const Json& given) { return rendering.text(given); });
  if (continues) cut_after_final_message(rendered, final_text);
  Prompt prompt{std::move(rendered.text), std::move(rendered.foreign), std::move(rendered.generated)};
  prompt.opens_reasoning = is_opening(prompt.text, prompt.foreign);
  return prompt;
}

}  // namespace switchyard::chat
