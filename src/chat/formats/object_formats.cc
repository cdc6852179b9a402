// hermes and llama3_json: each call is an object with its name.
#include <array>

#include "chat/formats/object_calls.h"

namespace switchyard::chat::formats {
namespace {

// <tool_call>{"name": …, "arguments": {…}}</tool_call>
class HermesCalls final : public ObjectCalls {
 public:
  HermesCalls(Answer& answer, const ToolTypes& tools) : ObjectCalls(answer, tools, kEnds) {}

  std::span<const std::string_view> begins() const override { return kBegins; }
  void finish(TextEnd end) override {
    if (!behind_ && !finish_object(end)) give_back();
  }
  bool take_back(Input& input) override { return !behind_ && take_object_back(input); }

 private:
  static constexpr std::array<std::string_view, 1> kBegins{"<tool_call>"};
  static constexpr std::string_view kEnd = "</tool_call>";
  static constexpr std::array<std::string_view, 1> kEnds{kEnd};

  void restart(std::string_view /*marker*/) override {
    behind_ = false;
    restart_object();
  }

  Step step(Input& input) override {
    if (behind_) return step_behind(input);
    const Object object = read_object(input);
    if (object == Object::reading) return Step::more;
    behind_ = object == Object::whole || announced();
    return behind_ ? Step::again : give_back();
  }

  // Behind the object: models forget the end tag, and some write a bracket too many.
  Step step_behind(Input& input) {
    const std::string_view rest = input.rest();
    if (is_space(rest.front()) || rest.front() == '}') {
      input.skip(1);
      return Step::again;
    }
    const Match matched = match(rest, kEnd);
    if (matched == Match::partly && !input.ended()) return Step::more;
    if (matched != Match::no) input.skip(std::min(rest.size(), kEnd.size()));
    return Step::content;
  }

  bool behind_ = false;
};

// The whole answer is {"name": …, "parameters": {…}}, several of them by semicolons.
class Llama3Calls final : public ObjectCalls {
 public:
  Llama3Calls(Answer& answer, const ToolTypes& tools) : ObjectCalls(answer, tools, {}) {}

  void finish(TextEnd end) override {
    if (at_ != At::behind && !finish_object(end)) give_back();
  }

 private:
  static constexpr std::string_view kTag = "<|python_tag|>";
  enum class At { tag, object, behind };

  void restart(std::string_view /*marker*/) override {
    at_ = At::tag;
    restart_object();
  }

  Step step(Input& input) override {
    if (at_ == At::tag) return step_at_tag(input);
    if (at_ == At::behind) {
      const char c = input.rest().front();
      if (c == '{') {
        at_ = At::object;
        restart_object();
      } else if (is_space(c) || c == ';' || c == ',') {
        input.skip(1);
      } else {
        return Step::content;
      }
      return Step::again;
    }
    const Object object = read_object(input);
    if (object == Object::reading) return Step::more;
    if (object == Object::broken) return give_back();
    at_ = At::behind;
    return Step::again;
  }

  Step step_at_tag(Input& input) {
    if (!take_optional(input, kTag)) return Step::more;
    at_ = At::object;
    return Step::again;
  }

  At at_ = At::tag;
};

}  // namespace

std::unique_ptr<CallReader> make_hermes_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<HermesCalls>(answer, tools);
}

std::unique_ptr<CallReader> make_llama3_json_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<Llama3Calls>(answer, tools);
}

}  // namespace switchyard::chat::formats
