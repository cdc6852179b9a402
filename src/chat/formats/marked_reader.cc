// Reasoning between tags at a text's beginning, then content, within which markers begin calls.
#include <algorithm>
#include <vector>

#include "chat/formats/reader.h"

namespace switchyard::chat::formats {
namespace {

class MarkedReader final : public Reader {
 public:
  MarkedReader(Answer& answer, const MarkedForm& form, std::unique_ptr<CallReader> calls,
               bool opens_reasoning)
      : answer_(answer),
        form_(form),
        calls_(std::move(calls)),
        opened_(opens_reasoning && !form.reasoning.empty()) {
    if (calls_ != nullptr) markers_.assign(calls_->begins().begin(), calls_->begins().end());
    if (form_.calls_end_reasoning) ends_ = markers_;
    first_end_tag_ = ends_.size();
    for (const TagPair& pair : form_.reasoning) ends_.push_back(pair.end);
  }

  void read(Input& input) override {
    while (!input.rest().empty() && step(input)) {
    }
  }

  void finish(TextEnd end) override {
    if (state_ == State::beginning && !opened_) answer_.content(space_);
    if (state_ == State::call) calls_->finish(end);
    answer_.finish();
  }

  bool take_back(Input& input) override { return state_ == State::call && calls_->take_back(input); }

  bool in_reasoning() const override {
    return state_ == State::reasoning || (state_ == State::beginning && opened_);
  }

 private:
  enum class State { beginning, reasoning, content_beginning, content, call };

  // Returns whether the rest may be read on.
  bool step(Input& input) {
    switch (state_) {
      case State::beginning:
        return step_at_beginning(input);
      case State::reasoning:
        return step_in_reasoning(input);
      case State::content_beginning:
        return begin_content(input);
      case State::content:
        return step_in_content(input);
      case State::call:
        break;
    }
    if (!calls_->read(input)) return false;
    state_ = State::content;
    if (calls_->begins().empty()) answer_.expect_no_calls();
    return true;
  }

  bool step_at_beginning(Input& input) {
    while (!input.rest().empty() && is_space(input.rest().front())) {
      space_ += input.rest().front();
      input.skip(1);
    }
    if (input.rest().empty()) return false;
    for (const TagPair& pair : form_.reasoning) {
      const Match matched = match(input.rest(), pair.begin);
      if (matched == Match::partly && !input.ended()) return false;
      if (matched != Match::yes) continue;
      input.skip(pair.begin.size());
      ends_.resize(first_end_tag_);
      ends_.push_back(pair.end);
      state_ = State::reasoning;
      return true;
    }
    state_ = opened_ ? State::reasoning : State::content_beginning;
    if (!opened_) answer_.content(space_);
    return true;
  }

  bool step_in_reasoning(Input& input) {
    const Found found = find_first(input.rest(), ends_, input.ended());
    answer_.reasoning(input.rest().substr(0, found.at));
    input.skip(found.at);
    if (found.which == ends_.size()) return false;
    if (found.which >= first_end_tag_) input.skip(ends_[found.which].size());
    answer_.end_reasoning();
    state_ = State::content_beginning;
    return true;
  }

  // Takes the tag before the content, if there is one, and white space before it. Returns false where only
  // more text can tell.
  bool take_content_tag(Input& input) {
    const std::string_view rest = input.rest();
    const auto text = std::ranges::find_if_not(rest, is_space);
    const auto space = static_cast<std::size_t>(text - rest.begin());
    answer_.content(rest.substr(0, space));
    input.skip(space);
    if (input.rest().empty()) return false;
    const Match matched = match(input.rest(), form_.content.begin);
    if (matched == Match::partly && !input.ended()) return false;
    if (matched != Match::yes) return true;
    input.skip(form_.content.begin.size());
    answer_.begin_tagged_content();
    markers_.push_back(form_.content.end);
    in_content_tags_ = true;
    return true;
  }

  void end_content_tags() {
    answer_.end_tagged_content();
    markers_.pop_back();
    in_content_tags_ = false;
  }

  bool begin_content(Input& input) {
    if (!form_.content.begin.empty() && !take_content_tag(input)) return false;
    state_ = State::content;
    if (calls_ == nullptr || !calls_->begins().empty()) return true;
    calls_->begin("");
    state_ = State::call;
    return true;
  }

  bool step_in_content(Input& input) {
    const Found found = find_first(input.rest(), markers_, input.ended());
    answer_.content(input.rest().substr(0, found.at));
    input.skip(found.at);
    if (found.which == markers_.size()) return false;
    const std::string_view marker = markers_[found.which];
    input.skip(marker.size());
    if (in_content_tags_ && marker == form_.content.end) {
      end_content_tags();
      return true;
    }
    calls_->begin(marker);
    state_ = State::call;
    return true;
  }

  Answer& answer_;
  MarkedForm form_;
  std::vector<std::string_view> ends_;  // of the reasoning, any of which may come: calls, then tags
  std::size_t first_end_tag_ = 0;
  std::unique_ptr<CallReader> calls_;
  std::vector<std::string_view> markers_;  // within the content
  bool in_content_tags_ = false;
  bool opened_;
  State state_ = State::beginning;
  std::string space_;
};

}  // namespace

bool JsonSpan::ends_with(char c) {
  if (in_text_) {
    if (escaped_)
      escaped_ = false;
    else if (c == '\\')
      escaped_ = true;
    else if (c == '"')
      in_text_ = false;
    return !in_text_ && depth_ == 0;
  }
  if (c == '"') in_text_ = true;
  if (c == '{' || c == '[') ++depth_;
  if (c == '}' || c == ']') --depth_;
  return !in_text_ && depth_ == 0;
}

bool take_arguments(JsonArguments& arguments, Input& input, Answer& answer) {
  using Result = JsonArguments::Result;
  Result result = Result::reading;
  std::string given;
  std::size_t size = 0;
  for (const char c : input.rest()) {
    result = arguments.take(c, given);
    if (result == Result::ended || result == Result::taken_back) break;
    ++size;
    if (result == Result::whole) break;
  }
  input.skip(size);
  if (result == Result::taken_back) input.put_back(arguments.taken_back());
  if (result != Result::reading && result != Result::whole) arguments.close(given);
  answer.arguments(given);
  return result != Result::reading;
}

bool take_arguments_back(JsonArguments& arguments, Input& input, Answer& answer) {
  if (!arguments.holds_tag()) return false;
  arguments.go_back();
  input.put_back(arguments.taken_back());
  std::string given;
  arguments.close(given);
  answer.arguments(given);
  return true;
}

void finish_arguments(JsonArguments& arguments, TextEnd end, Answer& answer) {
  std::string given;
  end == TextEnd::stop ? arguments.close(given) : arguments.flush(given);
  answer.arguments(given);
}

std::unique_ptr<Reader> make_marked_reader(Answer& answer, const MarkedForm& form,
                                           std::unique_ptr<CallReader> calls, bool opens_reasoning) {
  return std::make_unique<MarkedReader>(answer, form, std::move(calls), opens_reasoning);
}

}  // namespace switchyard::chat::formats
