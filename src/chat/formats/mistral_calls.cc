// [TOOL_CALLS][{"name": …, "arguments": {…}}, …], or [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{…} again and again.
#include <array>
#include <utility>
#include <vector>

#include "chat/formats/object_calls.h"

namespace switchyard::chat::formats {
namespace {

class MistralCalls final : public ObjectCalls {
 public:
  MistralCalls(Answer& answer, const ToolTypes& tools) : ObjectCalls(answer, tools, kBegins) {
    for (const std::string& name : tools.names()) bare_.push_back(name + std::string(kArguments));
    begins_.assign(kBegins.begin(), kBegins.end());
    begins_.insert(begins_.end(), bare_.begin(), bare_.end());
  }

  std::span<const std::string_view> begins() const override { return begins_; }

  void finish(TextEnd end) override {
    if (at_ == At::object && finish_object(end)) return;
    if (at_ == At::before_arguments) {
      announce(name_, id_);
      if (end == TextEnd::stop) answer_.arguments("{}");
    } else if (at_ == At::arguments) {
      finish_arguments(json_, end, answer_);
    } else if (!announced()) {
      give_back();
    }
  }

  bool take_back(Input& input) override {
    if (at_ == At::object) return take_object_back(input);
    if (at_ != At::arguments || !take_arguments_back(json_, input, answer_)) return false;
    end_call();
    return true;
  }

 private:
  static constexpr std::array<std::string_view, 1> kBegins{"[TOOL_CALLS]"};
  static constexpr std::string_view kId = "[CALL_ID]", kArguments = "[ARGS]";
  enum class At { begin, object, behind_object, name, id, before_arguments, arguments };

  // Models forget the marker before NAME[ARGS].
  void restart(std::string_view marker) override {
    const bool bare = marker != kBegins[0];
    at_ = bare ? At::before_arguments : At::begin;
    name_ = bare ? marker.substr(0, marker.size() - kArguments.size()) : std::string_view();
    id_.clear();
    json_.restart(kBegins);
    any_ = false;
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
    const bool others = std::exchange(any_, true);
    if (object == Object::broken) return others ? break_held() : give_back();
    return Step::again;
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
    if (rest.front() == '{' && !word.empty() && is_tool(name_)) {  // models leave the marker out
      at_ = At::before_arguments;
      return Step::again;
    }
    const bool fits = arguments == Match::yes || id == Match::yes;
    if (word.empty() || !fits || !is_tool(name_)) return break_held();
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
    if (!take_arguments(json_, input, answer_)) return Step::more;
    end_call();
    return Step::content;
  }

  At at_ = At::begin;
  std::string name_, id_;
  std::vector<std::string> bare_;
  std::vector<std::string_view> begins_;
  JsonArguments json_;
  bool any_ = false;  // of the list there was an object before
};

}  // namespace

std::unique_ptr<CallReader> make_mistral_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<MistralCalls>(answer, tools);
}

}  // namespace switchyard::chat::formats
