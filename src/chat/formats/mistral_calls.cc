// [TOOL_CALLS][{"name": …, "arguments": {…}}, …], or [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{…} again and again.
#include <array>

#include "chat/formats/object_calls.h"

namespace switchyard::chat::formats {
namespace {

class MistralCalls final : public ObjectCalls {
 public:
  explicit MistralCalls(Answer& answer) : ObjectCalls(answer) {}

  std::span<const std::string_view> begins() const override { return kBegins; }

  void finish(TextEnd end) override {
    if (at_ == At::object && finish_object(end)) return;
    if (at_ == At::before_arguments) {
      announce(name_, id_);
      if (end == TextEnd::stop) answer_.arguments("{}");
    } else if (!announced()) {
      give_back();
    }
  }

 private:
  static constexpr std::array<std::string_view, 1> kBegins{"[TOOL_CALLS]"};
  static constexpr std::string_view kId = "[CALL_ID]", kArguments = "[ARGS]";
  enum class At { begin, object, behind_object, name, id, before_arguments, arguments };

  void restart() override {
    at_ = At::begin;
    name_.clear();
    id_.clear();
    span_.restart();
  }

  Step step(Input& input) override {
    const bool skips_space = at_ == At::begin || at_ == At::behind_object || at_ == At::before_arguments;
    if (skips_space) take_space(input);
    if (input.rest().empty()) return Step::more;
    switch (at_) {
      case At::begin:
        return step_at_begin(input);
      case At::object:
        return step_in_object(input);
      case At::behind_object:
        return step_behind_object(input);
      case At::name:
        return step_in_word(input, name_);
      case At::id:
        return step_in_word(input, id_);
      case At::before_arguments:
        return step_before_arguments(input);
      case At::arguments:
        break;
    }
    return step_in_arguments(input);
  }

  Step step_at_begin(Input& input) {
    if (input.rest().front() != '[') {
      at_ = At::name;
      return Step::again;
    }
    take(input, 1);
    at_ = At::object;
    restart_object();
    return Step::again;
  }

  Step step_in_object(Input& input) {
    const Object object = read_object(input);
    if (object == Object::reading) return Step::more;
    at_ = At::behind_object;
    return object == Object::broken ? give_back() : Step::again;
  }

  Step step_behind_object(Input& input) {
    const char c = input.rest().front();
    if (c == ',' || c == ']') take(input, 1);
    if (c != ',') return give_back();
    at_ = At::object;
    restart_object();
    return Step::again;
  }

  // The name, or the id, up to the next marker.
  Step step_in_word(Input& input, std::string& word) {
    const std::string_view rest = input.rest();
    if (is_name_character(rest.front())) {
      word += rest.front();
      take(input, 1);
      return Step::again;
    }
    const Match arguments = match(rest, kArguments);
    const Match id = at_ == At::name ? match(rest, kId) : Match::no;
    if ((arguments == Match::partly || id == Match::partly) && !input.ended()) return Step::more;
    if (rest.front() == '{' && !word.empty()) {  // models leave the marker out
      at_ = At::before_arguments;
      return Step::again;
    }
    const bool fits = arguments == Match::yes || id == Match::yes;
    if (word.empty() || !fits) return give_back();
    at_ = arguments == Match::yes ? At::before_arguments : At::id;
    take(input, arguments == Match::yes ? kArguments.size() : kId.size());
    return Step::again;
  }

  Step step_before_arguments(Input& input) {
    const Match next = match(input.rest(), kBegins[0]);
    if (next == Match::partly) {
      if (input.ended()) input.skip(input.rest().size());
      return Step::more;
    }
    if (next == Match::yes) {  // the call had none
      announce(name_, id_);
      answer_.arguments("{}");
      end_call();
      return Step::content;
    }
    if (input.rest().front() != '{') return give_back();
    announce(name_, id_);
    at_ = At::arguments;
    return Step::again;
  }

  Step step_in_arguments(Input& input) {
    const bool whole = span_.take_arguments(input, answer_);
    if (!whole) return Step::more;
    end_call();
    return Step::content;
  }

  At at_ = At::begin;
  std::string name_, id_;
  JsonSpan span_;
};

}  // namespace

std::unique_ptr<CallReader> make_mistral_calls(Answer& answer, const ToolTypes& /*tools*/) {
  return std::make_unique<MistralCalls>(answer);
}

}  // namespace switchyard::chat::formats
