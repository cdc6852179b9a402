// glm4, hy_v3, qwen3_coder, mimo and minimax_m2: each argument is a plain text between tags. The tool's
// schema says which JSON it becomes.
#include <array>
#include <utility>
#include <vector>

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

constexpr TaggedForm verbatim(TaggedForm form) {
  form.value_on_lines = false;
  return form;
}
constexpr TaggedForm kMimo = verbatim(kQwen3Coder);
// Each tag of Hy3 is a token of its own, which has a suffix; the preview's have none.
constexpr TaggedForm kHyV3{{"<tool_calls:opensource>"}, "<tool_call:opensource>",
                           "<tool_sep:opensource>",     "<arg_key:opensource>",
                           "</arg_key:opensource>",     "<arg_value:opensource>",
                           "</arg_value:opensource>",   "</tool_call:opensource>",
                           "</tool_calls:opensource>",  false};
constexpr TaggedForm kHyV3Preview{{"<tool_calls>"}, "<tool_call>", "<tool_sep>",   "<arg_key>",
                                  "</arg_key>",     "<arg_value>", "</arg_value>", "</tool_call>",
                                  "</tool_calls>",  false};

class TaggedCalls final : public CallReader {
 public:
  TaggedCalls(Answer& answer, const ToolTypes& tools, const TaggedForm& form)
      : CallReader(answer, tools), form_(form), begins_(form.begin.begin(), form.begin.end()) {
    if (!form.call_begin.empty()) {
      begins_.push_back(form.call_begin);
      return;
    }
    for (const std::string& name : tools.names())
      for (const char* between : {"", "\n"}) bare_.push_back(name + between + std::string(form.key_begin));
    begins_.insert(begins_.end(), bare_.begin(), bare_.end());
  }

  // Models forget the first marker: the call's own begins one, too, or a tool's name before a key.
  std::span<const std::string_view> begins() const override { return begins_; }

  void finish(TextEnd end) override {
    const bool stopped = end == TextEnd::stop;
    // A model that stopped behind a name that nothing else ends meant it whole.
    const bool named = at_ == At::between_parameters ||
                       (at_ == At::name && form_.name_end.empty() && stopped && is_tool(name_));
    if (!named && !announced()) {
      if (at_ != At::between_calls) break_held();
      return;
    }
    announce_once();
    if (at_ == At::value) take_value(std::exchange(tag_and_on_, {}));
    if (!stopped) return;
    if (at_ == At::value) end_value();
    answer_.arguments(any_parameter_ ? "}" : "{}");
  }

  // A value that nothing ended ended at the first tag of its call.
  bool take_back(Input& input) override {
    if (at_ != At::value || tag_and_on_.empty()) return false;
    input.put_back(std::exchange(tag_and_on_, {}));
    end_value();
    at_ = At::between_parameters;
    return true;
  }

 private:
  enum class At { call, name, between_parameters, key, before_value, value, between_calls };

  void restart(std::string_view marker) override {
    name_.clear();
    key_.clear();
    any_parameter_ = false;
    if (marker == form_.begin[0]) {
      at_ = form_.call_begin.empty() ? At::name : At::call;
    } else if (marker == form_.call_begin) {
      at_ = At::name;
    } else {  // NAME and the beginning of a key
      name_ = marker.substr(0, marker.size() - form_.key_begin.size());
      while (is_space(name_.back())) name_.pop_back();
      announce_once();
      at_ = At::key;
    }
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
    if (begins != Match::yes) return break_held();
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
    if (ends != Match::yes || !is_tool(name_)) return break_held();
    take(input, form_.name_end.size());
    at_ = At::between_parameters;
    return Step::again;
  }

  Step step_between_parameters(Input& input) {
    take_space(input);
    if (input.rest().empty()) return Step::more;
    const std::string_view next = form_.call_begin.empty() ? form_.begin[0] : form_.call_begin;
    const std::array<std::string_view, 4> all{form_.key_begin, form_.call_end, next, form_.end};
    const auto markers = std::span(all).first(form_.end.empty() ? 3 : 4);
    const Found found = find_first(input.rest(), markers, false);
    if (found.at > 0 && !announced()) return break_held();
    input.skip(announced() ? found.at : 0);
    if (found.which == markers.size()) {
      if (input.ended()) input.skip(input.rest().size());
      return Step::more;
    }
    announce_once();
    const bool next_begins = found.which == 2;  // this call's end was forgotten
    if (!next_begins) input.skip(markers[found.which].size());
    if (found.which == 0) {
      at_ = At::key;
      key_.clear();
      return Step::again;
    }
    answer_.arguments(any_parameter_ ? "}" : "{}");
    end_call();
    at_ = At::between_calls;
    return found.which == 3 || form_.end.empty() ? Step::content : Step::again;
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
    const std::array<std::string_view, 3> markers{form_.value_end, form_.call_end, form_.key_begin};
    const Found found = find_first(input.rest(), markers, false);
    const std::string_view before = input.rest().substr(0, found.at);
    tag_and_on_.empty() ? take_value(before) : (void)tag_and_on_.append(before);
    input.skip(found.at);
    if (found.which == markers.size()) return leave_partial(input);
    input.skip(markers[found.which].size());
    if (found.which > 0 || is_in_json_text()) {  // text, if the value's end follows
      tag_and_on_ += markers[found.which];
      return Step::again;
    }
    take_value(std::exchange(tag_and_on_, {}));
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
    begin(form_.call_begin);
    input.skip(form_.call_begin.size());
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
    scanned_ = 0;
    is_json_ = in_json_text_ = json_escaped_ = false;
  }

  // The argument's key, before the first byte of its value.
  void give_key() {
    answer_.arguments((any_parameter_ ? ", " : "{") + json_text(key_) + ": ");
    any_parameter_ = true;
  }

  // Returns whether the value so far is a list or an object within which a JSON text is open.
  bool is_in_json_text() {
    if (types_.is_text()) return false;
    for (; scanned_ < value_.size() + tag_and_on_.size(); ++scanned_) {
      const char c = scanned_ < value_.size() ? value_[scanned_] : tag_and_on_[scanned_ - value_.size()];
      if (!is_json_ && is_space(c)) continue;
      if (!is_json_)
        is_json_ = (c == '[' && types_.has(JsonTypes::list)) || (c == '{' && types_.has(JsonTypes::object));
      if (!is_json_) return false;
      if (c == '"' && !json_escaped_) in_json_text_ = !in_json_text_;
      json_escaped_ = in_json_text_ && c == '\\' && !json_escaped_;
    }
    return in_json_text_;
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

  const TaggedForm& form_;
  std::vector<std::string> bare_;  // beginnings of calls without a marker
  std::vector<std::string_view> begins_;
  At at_ = At::name;
  std::string name_, key_, value_;  // value_: so far, of a value that is given whole
  std::string tag_and_on_;          // within a value: a tag of the call, and what follows it
  JsonTypes types_;
  std::size_t scanned_ = 0;  // of a value that may be JSON
  bool is_json_ = false, in_json_text_ = false, json_escaped_ = false;
  bool any_parameter_ = false, begins_value_ = false, held_line_end_ = false, opened_text_ = false;
};

}  // namespace

std::unique_ptr<CallReader> make_glm4_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<TaggedCalls>(answer, tools, kGlm4);
}

std::unique_ptr<CallReader> make_qwen3_coder_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<TaggedCalls>(answer, tools, kQwen3Coder);
}

std::unique_ptr<CallReader> make_mimo_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<TaggedCalls>(answer, tools, kMimo);
}

std::unique_ptr<CallReader> make_hy_v3_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<TaggedCalls>(answer, tools, kHyV3);
}

std::unique_ptr<CallReader> make_hy_v3_preview_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<TaggedCalls>(answer, tools, kHyV3Preview);
}

std::unique_ptr<CallReader> make_minimax_m2_calls(Answer& answer, const ToolTypes& tools) {
  return std::make_unique<TaggedCalls>(answer, tools, kMinimaxM2);
}

}  // namespace switchyard::chat::formats
