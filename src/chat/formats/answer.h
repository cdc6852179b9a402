// Answer: collects the changes that a text makes. Input: the part of the text that is still to be read.
// Match, find_first: markers in a text.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/answer_parser.h"

namespace switchyard::chat::formats {

bool is_space(char c);
// Returns whether a tool's name may have the character.
bool is_name_character(char c);

// The part of the text that no state has taken yet. States leave at most a beginning of a marker.
class Input {
 public:
  void append(std::string_view text) {
    text_.erase(0, at_);
    at_ = 0;
    text_ += text;
  }
  // Nothing follows: what could have become a marker is text.
  void end() { ended_ = true; }
  bool ended() const { return ended_; }
  std::string_view rest() const { return std::string_view(text_).substr(at_); }
  void skip(std::size_t bytes) { at_ += bytes; }
  // Puts bytes that were taken before what is to be read.
  void put_back(std::string_view text) {
    text_.replace(0, at_, text);
    at_ = 0;
  }

 private:
  std::string text_;
  std::size_t at_ = 0;
  bool ended_ = false;
};

// The answer to whether a text begins with a marker; partly: the text ends before the marker does.
enum class Match { no, partly, yes };
Match match(std::string_view text, std::string_view marker);

// The place of the first of some markers, and its index. Where no marker is found, `which` is the number of
// markers and `at` the place of the longest end that may still become one (the text's size where `ended`).
struct Found {
  std::size_t at;
  std::size_t which;
};
Found find_first(std::string_view text, std::span<const std::string_view> markers, bool ended);

// Gives content, reasoning and calls as deltas, without the white space that the formats drop.
class Answer {
 public:
  // `may_call`: white space at the content's end is kept back, since a call or an end tag drops it.
  // `text_after_calls`: content may follow a call; else it is dropped.
  Answer(bool may_call, bool text_after_calls) : may_call_(may_call), text_after_calls_(text_after_calls) {}

  void content(std::string_view text);
  // A call that was none is content, with what follows it up to the next call, also where
  // text behind calls is dropped.
  void broken_call(std::string_view text);
  // The content stands between tags: white space before the first is none of it, nor is a line end before
  // the last, nor white space behind that.
  void begin_tagged_content();
  void end_tagged_content();
  // Begins a message of its own: a line end is put between it and content before it.
  void begin_content_message();
  // No call can follow any more.
  void expect_no_calls();
  void reasoning(std::string_view text);
  void begin_reasoning_message();
  void end_reasoning();
  void begin_call(std::string name, std::string id);
  void arguments(std::string_view text);  // of the call that was begun last
  void end_call() { whole_calls_ = calls_; }
  // Gives the white space at the content's end, which no call follows.
  void finish();

  bool takes_content() const { return calls_ == 0 || text_after_calls_ || keeps_content_; }
  std::size_t calls() const { return calls_; }
  std::size_t whole_calls() const { return whole_calls_; }
  std::vector<Delta> take();

 private:
  // A text whose white space at both ends is not yet known to belong to it.
  struct Trimmed {
    bool drops_leading = false;
    bool given = false;  // something of it was given
    std::string space;   // at its end so far
  };
  void give(Delta::Kind kind, Trimmed& trimmed, std::string_view text);
  void emit(Delta::Kind kind, std::string_view text);
  static void begin_message(Trimmed& trimmed);

  bool may_call_, text_after_calls_, keeps_content_ = false;
  Trimmed content_, reasoning_ = {true, false, {}};
  std::vector<Delta> deltas_;
  std::size_t calls_ = 0, whole_calls_ = 0;
};

}  // namespace switchyard::chat::formats
