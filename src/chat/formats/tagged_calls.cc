// glm4, qwen3_coder and minimax_m2: each argument is a plain text between tags. The tool's schema says which
// JSON it becomes.
#include <array>

#include "chat/formats/reader.h"

namespace switchyard::chat::formats {
namespace {

struct TaggedForm {
  std::array<std::string_view, 1> begin;
  std::string_view call_begin;  // within `begin`; empty: the name follows at once
  std::string_view name_end;    // empty: the first byte that is not the name's
  std::string_view key_begin, key_end;
  std::string_view value_begin;  // empty: the value follows the key's end
  std::string_view value_end, call_end;
  std::string_view end;  // empty: the call's end is the end
  bool value_on_lines;   // a line end before and one after a value are not its
};

constexpr TaggedForm kGlm4{
    {"<tool_call>"}, "", "",   "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "</tool_call>",  "", false};
constexpr TaggedForm kQwen3Coder{{"<tool_call>"}, "<function=",   ">", "<parameter=", ">", "", "</parameter>",
                                 "</function>",   "</tool_call>", true};
constexpr TaggedForm kMinimaxM2{{"<minimax:tool_call>"},
                                "<invoke name=\"",
                                "\">",
                                "<parameter name=\"",
                                "\">",
                                "",
                                "</parameter>",
                                "</invoke>",
                                "</minimax:tool_call>",
                                false};

class TaggedCalls final : public CallReader {
 public:
  TaggedCalls(Answer& answer, const ToolTypes& tools, const TaggedForm& form)
      : CallReader(answer), tools_(tools), form_(form) {}

  std::span<const std::string_view> begins() const override { return form_.begin; }

  void finish(TextEnd end) override {
    const bool stopped = end == TextEnd::stop;
    // A model that stopped behind a name that nothing else ends meant it whole.
    const bool named = at_ == At::between_parameters ||
                       (at_ == At::name && form_.name_end.empty() && stopped && !name_.empty());
    if (!named && !announced()) {
      if (at_ != At::between_calls) give_back();
      return;
    }
    announce_once();
    if (!stopped) return;
    if (at_ == At::value) end_value();
    answer_.arguments(any_parameter_ ? "}" : "{}");
  }

 private:
  enum class At { call, name, between_parameters, key, before_value, value, between_calls };

  void restart() override {
    at_ = form_.call_begin.empty() ? At::name : At::call;
    name_.clear();
    any_parameter_ = false;
  }

  Step step(Input& input) override {
    switch (at_) {
      case At::call:
        return step_at_call(input);
      case At::name:
        return step_in_name(input);
      case At::between_parameters:
        return step_between_parameters(input);
      case At::key:
        return step_in_key(input);
      case At::before_value:
        return step_before_value(input);
      case At::value:
        return step_in_value(input);
      case At::between_calls:
        break;
    }
    return step_between_calls(input);
  }

  Step step_at_call(Input& input) {
    take_space(input);
    if (input.rest().empty()) return Step::more;
    const Match begins = match(input.rest(), form_.call_begin);
    if (begins == Match::partly && !input.ended()) return Step::more;
    if (begins != Match::yes) return give_back();
    take(input, form_.call_begin.size());
    at_ = At::name;
    return Step::again;
  }

  Step step_in_name(Input& input) {
    const char c = input.rest().front();
    if (is_name_character(c) || (is_space(c) && name_.empty())) {
      if (!is_space(c)) name_ += c;
      take(input, 1);
      return Step::again;
    }
    const Match ends = match(input.rest(), form_.name_end);
    if (ends == Match::partly && !input.ended()) return Step::more;
    if (ends != Match::yes || name_.empty()) return give_back();
    take(input, form_.name_end.size());
    at_ = At::between_parameters;
    return Step::again;
  }

  Step step_between_parameters(Input& input) {
    take_space(input);
    if (input.rest().empty()) return Step::more;
    const std::array<std::string_view, 3> all{form_.key_begin, form_.call_end, form_.end};
    const auto markers = std::span(all).first(form_.end.empty() ? 2 : 3);
    const Found found = find_first(input.rest(), markers, false);
    if (found.at > 0 && !announced()) return give_back();
    input.skip(announced() ? found.at : 0);
    if (found.which == markers.size()) {
      if (input.ended()) input.skip(input.rest().size());
      return Step::more;
    }
    announce_once();
    input.skip(markers[found.which].size());
    if (found.which == 0) {
      at_ = At::key;
      key_.clear();
      return Step::again;
    }
    answer_.arguments(any_parameter_ ? "}" : "{}");
    end_call();
    at_ = At::between_calls;
    return found.which == 2 || form_.end.empty() ? Step::content : Step::again;
  }

  Step step_in_key(Input& input) {
    const std::array<std::string_view, 1> markers{form_.key_end};
    const Found found = find_first(input.rest(), markers, false);
    key_ += input.rest().substr(0, found.at);
    input.skip(found.at);
    if (found.which == markers.size()) return leave_partial(input);
    input.skip(form_.key_end.size());
    begin_value();
    at_ = form_.value_begin.empty() ? At::value : At::before_value;
    return Step::again;
  }

  Step step_before_value(Input& input) {
    const std::array<std::string_view, 3> markers{form_.value_begin, form_.key_begin, form_.call_end};
    const Found found = find_first(input.rest(), markers, false);
    input.skip(found.at);
    if (found.which == markers.size()) return leave_partial(input);
    if (found.which == 0) input.skip(form_.value_begin.size());
    at_ = found.which == 0 ? At::value : At::between_parameters;  // without a value the key is none
    return Step::again;
  }

  Step step_in_value(Input& input) {
    const std::array<std::string_view, 1> markers{form_.value_end};
    const Found found = find_first(input.rest(), markers, false);
    take_value(input.rest().substr(0, found.at));
    input.skip(found.at);
    if (found.which == markers.size()) return leave_partial(input);
    input.skip(form_.value_end.size());
    end_value();
    at_ = At::between_parameters;
    return Step::again;
  }

  Step step_between_calls(Input& input) {
    const std::string_view rest = input.rest();
    if (is_space(rest.front())) {
      input.skip(1);
      return Step::again;
    }
    const Match next = match(rest, form_.call_begin), end = match(rest, form_.end);
    if (next != Match::yes && end != Match::yes) {
      const bool partly = next == Match::partly || end == Match::partly;
      if (partly) return leave_partial(input);
      if (answer_.takes_content()) return Step::content;  // the end tag was forgotten
      input.skip(1);
      return Step::again;
    }
    if (end == Match::yes) {
      input.skip(form_.end.size());
      return Step::content;
    }
    begin("");
    take(input, form_.call_begin.size());
    at_ = At::name;
    return Step::again;
  }

  // A beginning of a marker at the text's end is no part of an argument.
  static Step leave_partial(Input& input) {
    if (input.ended()) input.skip(input.rest().size());
    return Step::more;
  }

  void announce_once() {
    if (!announced()) announce(name_);
  }

  void begin_value() {
    types_ = tools_.type(name_, key_);
    value_.clear();
    begins_value_ = true;
    held_line_end_ = opened_text_ = false;
  }

  // The argument's key, before the first byte of its value.
  void give_key() {
    answer_.arguments((any_parameter_ ? ", " : "{") + json_text(key_) + ": ");
    any_parameter_ = true;
  }

  void take_value(std::string_view piece) {
    if (piece.empty()) return;
    const bool strips = form_.value_on_lines && begins_value_ && piece.front() == '\n';
    begins_value_ = false;
    if (strips) piece.remove_prefix(1);
    if (piece.empty()) return;
    if (held_line_end_) give_value("\n");
    held_line_end_ = form_.value_on_lines && piece.back() == '\n';
    if (held_line_end_) piece.remove_suffix(1);
    give_value(piece);
  }

  void give_value(std::string_view piece) {
    if (piece.empty()) return;
    if (!types_.is_text()) {
      value_ += piece;
      return;
    }
    open_text();
    std::string json;
    append_escaped(json, piece);
    answer_.arguments(json);
  }

  void open_text() {
    if (opened_text_) return;
    give_key();
    answer_.arguments("\"");
    opened_text_ = true;
  }

  void end_value() {
    if (types_.is_text()) {
      open_text();
      answer_.arguments("\"");
      return;
    }
    give_key();
    answer_.arguments(json_of_value(value_, types_));
  }

  const ToolTypes& tools_;
  const TaggedForm& form_;
  At at_ = At::name;
  std::string name_, key_, value_;  // value_: so far, of a value that is given whole
  JsonTypes types_;
  bool any_parameter_ = false, begins_value_ = false, held_line_end_ = false, opened_text_ = false;
};

}  // namespace

std::unique_ptr<CallReader> make_glm4_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<TaggedCalls>(answer, tools, kGlm4);
}

std::unique_ptr<CallReader> make_qwen3_coder_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<TaggedCalls>(answer, tools, kQwen3Coder);
}

std::unique_ptr<CallReader> make_minimax_m2_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<TaggedCalls>(answer, tools, kMinimaxM2);
}

}  // namespace switchyard::chat::formats
