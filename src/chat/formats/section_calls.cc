// kimi_k2 and deepseek: a section of calls, each a name, a marker, and JSON up to an end marker.
#include <array>

#include "chat/formats/reader.h"

namespace switchyard::chat::formats {
namespace {

struct SectionForm {
  std::array<std::string_view, 2> begins;  // of the section, and of a call: models forget the former
  std::string_view call_begin, name_end, call_end, end;
  bool name_is_id;          // functions.NAME:INDEX, which is the id, too
  bool name_behind_marker;  // a type stands before `name_end`; behind it the name, and JSON in a fence
};

constexpr SectionForm kKimi{{"<|tool_calls_section_begin|>", "<|tool_call_begin|>"},
                            "<|tool_call_begin|>",
                            "<|tool_call_argument_begin|>",
                            "<|tool_call_end|>",
                            "<|tool_calls_section_end|>",
                            true,
                            false};
constexpr SectionForm kDeepseek{{"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"},
                                "<｜tool▁call▁begin｜>",
                                "<｜tool▁sep｜>",
                                "<｜tool▁call▁end｜>",
                                "<｜tool▁calls▁end｜>",
                                false,
                                false};
constexpr SectionForm fenced(SectionForm form) {
  form.name_behind_marker = true;
  return form;
}
constexpr SectionForm kDeepseekFenced = fenced(kDeepseek);

// Returns NAME of functions.NAME:INDEX.
std::string name_of_id(std::string_view id) {
  constexpr std::string_view kPrefix = "functions.";
  if (id.starts_with(kPrefix)) id.remove_prefix(kPrefix.size());
  const std::size_t colon = id.rfind(':');
  return std::string(id.substr(0, colon));
}

class SectionCalls final : public CallReader {
 public:
  SectionCalls(Answer& answer, const ToolTypes& tools, const SectionForm& form)
      : CallReader(answer, tools), form_(form), tags_{form.call_end, form.end} {}

  std::span<const std::string_view> begins() const override { return form_.begins; }

  void finish(TextEnd end) override {
    if (at_ == At::fence || at_ == At::before_arguments) {
      begin_arguments();
      if (end == TextEnd::stop) answer_.arguments("{}");
    } else if (at_ == At::arguments) {
      finish_arguments(json_, end, answer_);
    } else {
      at_ == At::between ? give_back() : break_held();
    }
  }

  bool take_back(Input& input) override {
    if (at_ != At::arguments || !take_arguments_back(json_, input, answer_)) return false;
    leave_call();
    return true;
  }

 private:
  enum class At { between, word, name, fence, before_arguments, arguments };

  void restart(std::string_view marker) override {
    at_ = marker == form_.call_begin ? At::word : At::between;
    word_.clear();
    any_ = false;
  }

  Step step(Input& input) override {
    switch (at_) {
      case At::between:
        return step_between(input);
      case At::word:
        return step_in_word(input);
      case At::name:
        return step_in_name(input);
      case At::fence:
        return step_at_fence(input);
      case At::before_arguments:
        return step_before_arguments(input);
      case At::arguments:
        break;
    }
    return step_in_arguments(input);
  }

  // Outside of calls: behind the first one only markers count.
  Step step_between(Input& input) {
    const std::array<std::string_view, 2> markers{form_.call_begin, form_.end};
    if (!any_) {
      take_space(input);
      if (input.rest().empty()) return Step::more;
      const Match begins = match(input.rest(), form_.call_begin);
      if (begins == Match::no) return give_back();
    }
    const Found found = find_first(input.rest(), markers, input.ended());
    take(input, found.at);
    if (found.which == markers.size()) return Step::more;
    take(input, markers[found.which].size());
    if (found.which == 1) return Step::content;
    at_ = At::word;
    word_.clear();
    return Step::again;
  }

  // The name, or what stands before it, up to the marker.
  Step step_in_word(Input& input) {
    const std::string_view rest = input.rest();
    const Match ends = match(rest, form_.name_end);
    if (ends == Match::partly && !input.ended()) return Step::more;
    if (ends != Match::yes) {
      const char c = rest.front();
      const bool is_edge = is_space(c) && word_.empty();
      if (!is_edge && !is_name_character(c) && !(form_.name_is_id && c == ':')) return break_held();
      if (!is_edge) word_ += c;
      take(input, 1);
      return Step::again;
    }
    take(input, form_.name_end.size());
    if (form_.name_behind_marker) {
      word_.clear();
      at_ = At::name;
      return Step::again;
    }
    at_ = At::before_arguments;
    return is_tool(name()) ? Step::again : break_held();
  }

  Step step_in_name(Input& input) {
    const char c = input.rest().front();
    if (is_name_character(c)) {
      word_ += c;
    } else if (!is_space(c) || !word_.empty()) {
      if (!is_tool(word_)) return break_held();
      at_ = At::fence;
      return Step::again;
    }
    take(input, 1);
    return Step::again;
  }

  // ```json, which may be missing.
  Step step_at_fence(Input& input) {
    constexpr std::string_view kFence = "```json", kShortFence = "```";
    take_space(input);
    if (input.rest().empty()) return Step::more;
    const Match fence = match(input.rest(), kFence);
    if (fence == Match::partly && !input.ended()) return Step::more;
    if (fence == Match::yes)
      take(input, kFence.size());
    else if (input.rest().starts_with(kShortFence))
      take(input, kShortFence.size());
    at_ = At::before_arguments;
    return Step::again;
  }

  Step step_before_arguments(Input& input) {
    take_space(input);
    if (input.rest().empty()) return Step::more;
    if (input.rest().front() == '{') {
      begin_arguments();
      at_ = At::arguments;
      json_.restart(tags_);
      return Step::again;
    }
    const Match ends = match(input.rest(), form_.call_end);
    if (ends == Match::no && form_.name_behind_marker && input.rest().front() == '`') {
      take(input, 1);  // an empty fence
      return Step::again;
    }
    if (ends == Match::no) return break_held();
    if (ends == Match::partly) {
      if (input.ended()) input.skip(input.rest().size());
      return Step::more;
    }
    take(input, form_.call_end.size());
    begin_arguments();
    answer_.arguments("{}");
    leave_call();
    return Step::again;
  }

  Step step_in_arguments(Input& input) {
    if (!take_arguments(json_, input, answer_)) return Step::more;
    leave_call();
    return Step::again;
  }

  std::string name() const { return form_.name_is_id ? name_of_id(word_) : word_; }
  void begin_arguments() { announce(name(), form_.name_is_id ? word_ : std::string()); }
  void leave_call() {
    end_call();
    any_ = true;
    at_ = At::between;
  }

  const SectionForm& form_;
  const std::array<std::string_view, 2> tags_;
  At at_ = At::between;
  bool any_ = false;  // a call of this section was announced
  std::string word_;
  JsonArguments json_;
};

}  // namespace

std::unique_ptr<CallReader> make_kimi_k2_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<SectionCalls>(answer, tools, kKimi);
}

std::unique_ptr<CallReader> make_deepseek_v3_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<SectionCalls>(answer, tools, kDeepseekFenced);
}

std::unique_ptr<CallReader> make_deepseek_v3_1_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<SectionCalls>(answer, tools, kDeepseek);
}

}  // namespace switchyard::chat::formats
