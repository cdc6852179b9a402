// llama4_pythonic: the whole answer is [f(a=1, b='x'), g()].
// The markers <|python_start|> and <|python_end|> may enclose it.
#include "chat/formats/python_value.h"
#include "chat/formats/reader.h"

namespace switchyard::chat::formats {
namespace {

class PythonicCalls final : public CallReader {
 public:
  PythonicCalls(Answer& answer, const ToolTypes& tools) : CallReader(answer, tools) {}

  void finish(TextEnd end) override {
    if (at_ == At::list || at_ == At::name) give_back();
    if (at_ != At::parameters && at_ != At::key && at_ != At::value) return;
    if (!announced()) announce(name_);
    if (end == TextEnd::stop) close_call();
  }

 private:
  static constexpr std::string_view kTag = "<|python_start|>";
  enum class At { tag, list, name, parameters, key, value, behind_call };

  void restart(std::string_view /*marker*/) override {
    at_ = At::tag;
    any_call_ = false;
  }

  Step step(Input& input) override {
    if (at_ == At::tag) return step_at_tag(input);
    const char c = input.rest().front();
    const Step result = at_ == At::value ? take_value_byte(c)
                        : is_space(c)    ? take_space_byte()
                                         : take_byte(c);
    if (result != Step::content) take(input, 1);
    return result;
  }

  Step step_at_tag(Input& input) {
    if (!take_optional(input, kTag)) return Step::more;
    at_ = At::list;
    return Step::again;
  }

  // Outside of values white space only ends a name or a key.
  Step take_space_byte() {
    if (at_ == At::name && !name_.empty()) name_ended_ = true;
    if (at_ == At::key) key_ended_ = true;
    return Step::again;
  }

  Step take_byte(char c) {
    switch (at_) {
      case At::list:
        begin_name();
        return c == '[' ? Step::again : give_back();
      case At::name:
        return take_name_byte(c);
      case At::parameters:
        if (c == ')') return end_call_here();
        key_.clear();
        key_ended_ = false;
        at_ = At::key;
        [[fallthrough]];
      case At::key:
        return take_key_byte(c);
      case At::behind_call:
        if (c != ',') return Step::content;
        begin_name();
        return Step::again;
      case At::tag:
      case At::value:
        break;
    }
    return give_back();
  }

  void begin_name() {
    at_ = At::name;
    name_.clear();
    name_ended_ = any_parameter_ = false;
  }

  Step take_name_byte(char c) {
    if (is_name_character(c) && !name_ended_) {
      name_ += c;
      return Step::again;
    }
    if (c != '(' || !is_tool(name_)) return any_call_ ? break_held() : give_back();
    at_ = At::parameters;
    return Step::again;
  }

  Step take_key_byte(char c) {
    if (is_name_character(c) && !key_ended_) {
      key_ += c;
      return Step::again;
    }
    if (c != '=' || key_.empty()) return announced() ? break_call() : give_back();
    if (!announced()) announce(name_);
    value_.restart();
    given_key_ = false;
    at_ = At::value;
    return Step::again;
  }

  Step take_value_byte(char c) {
    std::string json;
    const PythonValue::Result result = value_.take(c, json);
    give(json);
    if (result == PythonValue::Result::broken) return break_call();
    if (result == PythonValue::Result::reading) return Step::again;
    at_ = At::parameters;
    return c == ')' ? end_call_here() : Step::again;
  }

  // Gives a piece of a value's JSON; before the first one its key.
  void give(const std::string& json) {
    if (json.empty()) return;
    if (!given_key_) answer_.arguments((any_parameter_ ? ", " : "{") + json_text(key_) + ": ");
    given_key_ = any_parameter_ = true;
    answer_.arguments(json);
  }

  void close_call() {
    if (at_ == At::value) {
      std::string json;
      value_.close(json);
      give(json);
    }
    answer_.arguments(any_parameter_ ? "}" : "{}");
  }

  Step end_call_here() {
    if (!announced()) announce(name_);
    close_call();
    end_call();
    any_call_ = true;
    at_ = At::behind_call;
    return Step::again;
  }

  // The arguments are no Python: what came of them is kept, and the rest is dropped as text behind calls is.
  Step break_call() {
    close_call();
    end_call();
    at_ = At::behind_call;
    return Step::content;
  }

  At at_ = At::tag;
  std::string name_, key_;
  bool name_ended_ = false, key_ended_ = false, any_call_ = false, any_parameter_ = false, given_key_ = false;
  PythonValue value_;
};

}  // namespace

std::unique_ptr<CallReader> make_llama4_pythonic_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<PythonicCalls>(answer, tools);
}

}  // namespace switchyard::chat::formats
