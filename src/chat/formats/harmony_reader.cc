// harmony: messages, each of a header, <|message|>, a body and an end. The header names the channel, and the
// recipient of a call. The prompt ends within the first header.
#include <algorithm>
#include <array>
#include <optional>

#include "chat/formats/reader.h"

namespace switchyard::chat::formats {
namespace {

constexpr std::string_view kChannel = "<|channel|>", kStart = "<|start|>", kMessage = "<|message|>";
constexpr std::string_view kRecipient = "to=";
constexpr std::size_t kEnds = 4;
// The markers that end a body; the last one also begins the next header. Nothing follows the return marker.
constexpr std::array<std::string_view, kEnds> kBodyEnds{"<|return|>", "<|end|>", "<|call|>", kStart};
constexpr std::size_t kReturn = 0, kNextStart = 3;
constexpr std::array<std::string_view, kEnds> kHeaderEnds{"<|return|>", "<|end|>", "<|call|>", kMessage};
constexpr std::size_t kBody = 3;
constexpr std::array<std::string_view, 5> kHeaderBegins{kChannel, kStart, kMessage, "<|constrain|>",
                                                        kRecipient};

// Returns the word of a header that follows `key`.
std::string_view word_after(std::string_view header, std::string_view key) {
  const std::size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + key.size());
  return header.substr(0, header.find_first_of(" \t\r\n<"));
}

class HarmonyReader final : public Reader {
 public:
  HarmonyReader(Answer& answer, const ToolTypes& tools, bool opens_reasoning)
      : answer_(answer), tools_(tools) {
    if (opens_reasoning) state_ = State::reasoning;
  }

  void read(Input& input) override {
    while (!input.rest().empty() && step(input)) {
    }
  }

  void finish(TextEnd end) override {
    // A header that was cut is no text of a message.
    if (state_ == State::header_begin || (state_ == State::header && end == TextEnd::stop))
      answer_.content(header_);
    if (state_ == State::call_begin) {
      answer_.begin_call(name_, {});
      if (end == TextEnd::stop) answer_.arguments("{}");
    }
    if (state_ == State::arguments) finish_arguments(arguments_, end, answer_);
    answer_.finish();
  }

  bool take_back(Input& input) override {
    if (state_ != State::arguments || !take_arguments_back(arguments_, input, answer_)) return false;
    end_call();
    return true;
  }

  bool in_reasoning() const override { return state_ == State::reasoning; }

 private:
  enum class State {
    header_begin,
    header,
    reasoning,
    content,
    call_begin,
    arguments,
    behind_arguments,
    over
  };

  bool step(Input& input) {
    switch (state_) {
      case State::header_begin:
        return step_at_header(input);
      case State::header:
        return step_in_header(input);
      case State::call_begin:
        return step_at_call(input);
      case State::arguments:
        return step_in_arguments(input);
      case State::over:
        input.skip(input.rest().size());
        return false;
      case State::reasoning:
      case State::content:
      case State::behind_arguments:
        break;
    }
    return step_in_body(input);
  }

  // A text without a header is content.
  bool step_at_header(Input& input) {
    while (!input.rest().empty() && is_space(input.rest().front())) move_to_header(input, 1);
    if (input.rest().empty()) return false;
    Match best = Match::no;
    for (std::string_view begin : kHeaderBegins) best = std::max(best, match(input.rest(), begin));
    if (best == Match::partly && !input.ended()) return false;
    state_ = best == Match::yes ? State::header : State::content;
    if (best != Match::yes) answer_.content(header_);
    return true;
  }

  bool step_in_header(Input& input) {
    const Found found = find_first(input.rest(), kHeaderEnds, input.ended());
    move_to_header(input, found.at);
    if (found.which == kHeaderEnds.size()) return false;
    move_to_header(input, kHeaderEnds[found.which].size());
    if (found.which == kBody)
      begin_body();
    else
      begin_header(found.which);
    return true;
  }

  void begin_body() {
    constexpr std::string_view kFunctions = "functions.";
    std::string_view recipient = word_after(header_, kRecipient);
    if (recipient.starts_with(kFunctions)) recipient.remove_prefix(kFunctions.size());
    const bool analysis = word_after(header_, kChannel) == "analysis";
    if (!recipient.empty() && std::ranges::all_of(recipient, is_name_character)) {
      name_ = recipient;
      state_ = tools_.has(name_) ? State::call_begin : State::content;
      if (state_ == State::content) answer_.content(header_);
    } else if (analysis) {
      state_ = State::reasoning;
      answer_.begin_reasoning_message();
    } else {
      state_ = State::content;
      answer_.begin_content_message();
    }
  }

  bool step_in_body(Input& input) {
    const Found found = find_first(input.rest(), kBodyEnds, input.ended());
    const std::string_view text = input.rest().substr(0, found.at);
    if (state_ == State::reasoning) answer_.reasoning(text);
    if (state_ == State::content) answer_.content(text);
    input.skip(found.at);
    if (found.which == kBodyEnds.size()) return false;
    if (state_ == State::reasoning) answer_.end_reasoning();
    input.skip(kBodyEnds[found.which].size());
    begin_header(found.which);
    return true;
  }

  // The header behind an end of kBodyEnds.
  void begin_header(std::size_t which) {
    header_ = which == kNextStart ? kStart : "";
    state_ = which == kReturn ? State::over : which == kNextStart ? State::header : State::header_begin;
  }

  bool step_at_call(Input& input) {
    while (!input.rest().empty() && is_space(input.rest().front())) move_to_header(input, 1);
    if (input.rest().empty()) return false;
    const Found found = find_first(input.rest(), kBodyEnds, false);
    const bool ends = found.at == 0 && found.which < kBodyEnds.size();
    if (found.at == 0 && !ends) {
      if (input.ended()) input.skip(input.rest().size());
      return false;
    }
    if (ends || input.rest().front() == '{') {
      answer_.begin_call(name_, {});
      state_ = ends ? State::behind_arguments : State::arguments;
      if (ends) answer_.arguments("{}");
      if (ends) answer_.end_call();
      arguments_.restart(kBodyEnds);
      return true;
    }
    answer_.content(header_);
    state_ = State::content;
    return true;
  }

  bool step_in_arguments(Input& input) {
    if (!take_arguments(arguments_, input, answer_)) return false;
    end_call();
    return true;
  }

  void end_call() {
    answer_.end_call();
    state_ = State::behind_arguments;
  }

  void move_to_header(Input& input, std::size_t bytes) {
    header_ += input.rest().substr(0, bytes);
    input.skip(bytes);
  }

  Answer& answer_;
  const ToolTypes& tools_;
  State state_ = State::header_begin;
  std::string header_;  // of the message, with its markers
  std::string name_;
  JsonArguments arguments_;
};

}  // namespace

std::unique_ptr<Reader> make_harmony_reader(Answer& answer, const ToolTypes& tools, bool opens_reasoning) {
  return std::make_unique<HarmonyReader>(answer, tools, opens_reasoning);
}

}  // namespace switchyard::chat::formats
