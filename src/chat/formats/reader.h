// Readers: what takes a text apart. A family of formats derives a CallReader, or a Reader of all the text.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "chat/formats/answer.h"
#include "chat/formats/json_arguments.h"
#include "chat/formats/tool_types.h"

namespace switchyard::chat::formats {

// Reads the whole text of an answer.
class Reader {
 public:
  virtual ~Reader() = default;
  // Takes all of the input but what may still become a marker.
  virtual void read(Input& input) = 0;
  // The input has ended and was read.
  virtual void finish(TextEnd end) = 0;
  virtual bool in_reasoning() const = 0;
  // The input has ended: a call that was never closed may have ended before, and the text behind it is to be
  // read again. Returns whether it is.
  virtual bool take_back(Input& /*input*/) { return false; }
};

// Reads calls, from a marker on. Until a call is announced its text is held: it is content if it is no call.
class CallReader {
 public:
  CallReader(Answer& answer, const ToolTypes& tools) : answer_(answer), tools_(tools) {}
  virtual ~CallReader() = default;

  // The texts that begin a call within content. None: the content as a whole is calls, or has none.
  virtual std::span<const std::string_view> begins() const { return {}; }
  // The text goes on after `marker`.
  void begin(std::string_view marker) {
    held_ = marker;
    announced_ = false;
    restart(marker);
  }
  // Returns whether content goes on; else the input was taken as far as possible.
  bool read(Input& input) {
    while (!input.rest().empty()) {
      const Step step = this->step(input);
      if (step == Step::more) return false;
      if (step == Step::content) return true;
    }
    return false;
  }
  // The text has ended before the calls did.
  virtual void finish(TextEnd end) = 0;
  // Does what Reader::take_back does.
  virtual bool take_back(Input& /*input*/) { return false; }

 protected:
  enum class Step { again, more, content };
  // `marker`: one of begins(), or empty.
  virtual void restart(std::string_view marker) = 0;
  // Takes some of the input, which is not empty.
  virtual Step step(Input& input) = 0;

  // Takes bytes of the input, and holds them while no call is announced.
  void take(Input& input, std::size_t bytes) {
    if (!announced_) held_ += input.rest().substr(0, bytes);
    input.skip(bytes);
  }
  void take_space(Input& input) {
    while (!input.rest().empty() && is_space(input.rest().front())) take(input, 1);
  }
  // Takes white space, and the marker where it follows. Returns false where only more text
  // can tell whether the marker follows.
  bool take_optional(Input& input, std::string_view marker) {
    take_space(input);
    if (input.rest().empty()) return false;
    const Match matched = match(input.rest(), marker);
    if (matched == Match::partly && !input.ended()) return false;
    if (matched == Match::yes) take(input, marker.size());
    return true;
  }
  void announce(std::string name, std::string id = {}) {
    answer_.begin_call(std::move(name), std::move(id));
    announced_ = true;
    held_.clear();
  }
  // The call ends; the next one of the same marker is held again.
  void end_call() {
    answer_.end_call();
    announced_ = false;
  }
  bool announced() const { return announced_; }
  // Gives the held text as content.
  Step give_back() {
    answer_.content(held_);
    held_.clear();
    return Step::content;
  }

  // Gives the held text, which begins like a call, as content.
  Step break_held() {
    answer_.broken_call(held_);
    held_.clear();
    return Step::content;
  }
  bool is_tool(const std::string& name) const { return tools_.has(name); }

  Answer& answer_;
  const ToolTypes& tools_;

 private:
  std::string held_;
  bool announced_ = false;
};

// Finds the end of a JSON value: the byte that closes its outermost bracket.
class JsonSpan {
 public:
  // Takes the next byte, the first of which opens an object, a list or a text. Returns whether the value
  // ends with this byte.
  bool ends_with(char c);
  void restart() { *this = {}; }

 private:
  std::size_t depth_ = 0;
  bool in_text_ = false, escaped_ = false;
};

// Takes the input up to the arguments' end as arguments of the call that was begun last.
// Returns whether they have ended.
bool take_arguments(JsonArguments& arguments, Input& input, Answer& answer);
// The input has ended within arguments. Returns whether they ended before, at a tag: what stands from there
// on is put back.
bool take_arguments_back(JsonArguments& arguments, Input& input, Answer& answer);
// The text has ended within arguments.
void finish_arguments(JsonArguments& arguments, TextEnd end, Answer& answer);

// Reading of the text around calls: reasoning between tags at its beginning, then content.
struct TagPair {
  std::string_view begin, end;
};
struct MarkedForm {
  std::span<const TagPair> reasoning;  // any of these may stand around the reasoning
  TagPair content = {};                // stand around the content, or are left out; empty: there are none
  bool calls_end_reasoning = false;    // what begins a call ends the reasoning, too
};
std::unique_ptr<Reader> make_marked_reader(Answer& answer, const MarkedForm& form,
                                           std::unique_ptr<CallReader> calls, bool opens_reasoning);
std::unique_ptr<Reader> make_harmony_reader(Answer& answer, const ToolTypes& tools, bool opens_reasoning);

std::unique_ptr<CallReader> make_hermes_calls(Answer& answer, const ToolTypes& tools);
std::unique_ptr<CallReader> make_llama3_json_calls(Answer& answer, const ToolTypes& tools);
std::unique_ptr<CallReader> make_mistral_calls(Answer& answer, const ToolTypes& tools);
std::unique_ptr<CallReader> make_kimi_k2_calls(Answer& answer, const ToolTypes& tools);
std::unique_ptr<CallReader> make_deepseek_v3_calls(Answer& answer, const ToolTypes& tools);
std::unique_ptr<CallReader> make_deepseek_v3_1_calls(Answer& answer, const ToolTypes& tools);
std::unique_ptr<CallReader> make_glm4_calls(Answer& answer, const ToolTypes& tools);
std::unique_ptr<CallReader> make_hy_v3_calls(Answer& answer, const ToolTypes& tools);
std::unique_ptr<CallReader> make_hy_v3_preview_calls(Answer& answer, const ToolTypes& tools);
std::unique_ptr<CallReader> make_qwen3_coder_calls(Answer& answer, const ToolTypes& tools);
std::unique_ptr<CallReader> make_mimo_calls(Answer& answer, const ToolTypes& tools);
std::unique_ptr<CallReader> make_minimax_m2_calls(Answer& answer, const ToolTypes& tools);
std::unique_ptr<CallReader> make_llama4_pythonic_calls(Answer& answer, const ToolTypes& tools);

}  // namespace switchyard::chat::formats
