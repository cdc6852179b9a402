// JsonArguments: the arguments of a call as a model writes them, byte by byte, and where they end.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace switchyard::chat::formats {

// Gives JSON as it was written, but for what keeps it from being JSON and is plain: control characters within
// a text get their escapes, Python's True, False and None JSON's words, a comma before a bracket is dropped.
// From other faults on all is given as it is.
//
// Outside of a text a `<` can only begin what ends the call. Within a text an end tag is text; but where the
// text turns out never to have been closed, the tag did end the call: until that is known it is held.
class JsonArguments {
 public:
  enum class Result {
    reading,
    whole,      // the byte is the last one
    ended,      // the byte is not part of them: it begins what ends the call
    taken_back  // an end tag of before was the end: the bytes of taken_back() are to be read again, then this
                // one
  };
  // `tags`: texts that end a call of the format.
  void restart(std::span<const std::string_view> tags);
  // Takes the next byte, the first of which is `{`, and appends what is sure.
  Result take(char c, std::string& given);
  std::string taken_back();
  // Returns whether an end tag within an open text waits.
  bool holds_tag() const { return waiting_ && waiting_->found; }
  // Goes back to before the tag that waits.
  void go_back();
  // Closes whatever is open, so that what was given is JSON, where it is so far.
  void close(std::string& given);
  // Gives what waits, as it was written.
  void flush(std::string& given);

 private:
  enum class At { value, first_item, first_key, key, in_key, colon, in_text, in_word, behind, as_it_is };
  struct State {
    At at = At::value;
    std::string open;            // brackets
    std::string held;            // white space, a comma or a word, given once more follows
    int escape = 0;              // 1: behind a backslash; 5 to 2: a digit of \u less each
    bool in_plain_text = false;  // of as_it_is
  };
  // An end tag, or its beginning so far, in a text, and what followed it.
  struct Waiting {
    State before;
    std::string bytes, given;
    bool found = false;
  };
  Result take_byte(char c, std::string& given);
  Result take_as_it_is(char c, std::string& given);
  bool take_text_byte(char c, std::string& given);
  bool take_structure(char c, std::string& given);
  bool end_word(std::string& given, bool cut);
  void begin_item(std::string& given, std::string_view text, At next);
  bool is_in_text() const;
  bool continues_tag(char c) const;

  State state_;
  std::shared_ptr<Waiting> waiting_;
  std::string back_;
  std::span<const std::string_view> tags_;
};

}  // namespace switchyard::chat::formats
