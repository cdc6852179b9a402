// PythonValue: turns a Python literal into JSON, byte by byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::chat::formats {

class PythonValue {
 public:
  enum class Result { reading, whole, broken };
  void restart() { *this = {}; }
  // Takes the next byte and appends what it adds to the JSON. whole: the byte is the `,` or `)` behind the
  // value, and no part of it. broken: the byte does not fit.
  Result take(char c, std::string& json);
  // Closes whatever is open, so that what was given is whole JSON.
  void close(std::string& json);

 private:
  enum class At { value, key, in_word, opening_quotes, in_text, in_escape, in_code, in_octal, colon, behind };
  Result begin_value(char c, std::string& json);
  Result take_behind(char c, std::string& json);
  Result take_text_byte(char c, std::string& json);
  Result take_escape(char c, std::string& json);
  Result take_code(char c, std::string& json);
  Result end_text(std::string& json);
  void end_word(std::string& json);
  void begin_element(std::string& json);
  void flush_quotes(std::string& json);

  struct Open {
    char bracket;
    bool any = false;  // an element was begun
  };
  std::vector<Open> open_;
  At at_ = At::value;
  std::string word_;
  bool is_key_ = false;
  char quote_ = 0;
  int quotes_ = 0;       // in a row: at the text's beginning, or of its end so far
  bool triple_ = false;  // the text ends with three quotes
  std::uint32_t code_ = 0;
  int digits_left_ = 0;
};

}  // namespace switchyard::chat::formats
