// ObjectCalls: calls that are a JSON object of a name and arguments.
#pragma once

#include "chat/formats/reader.h"

namespace switchyard::chat::formats {

// Reads {"name": …, "arguments" or "parameters": {…}}, keys in any order and others among them. The call is
// announced once its name is whole and its arguments or its end begin.
class ObjectCalls : public CallReader {
 public:
  // `tags`: texts that end a call of the format.
  ObjectCalls(Answer& answer, const ToolTypes& tools, std::span<const std::string_view> tags)
      : CallReader(answer, tools), tags_(tags) {}

 protected:
  enum class Object { reading, whole, broken };
  void restart_object();
  // Takes the input up to the object's end, or to the first byte that does not fit, which it leaves.
  Object read_object(Input& input);
  // The text ended within the object. Returns whether a call was begun.
  bool finish_object(TextEnd end);
  // Does what CallReader::take_back does, within an object.
  bool take_object_back(Input& input);

 private:
  enum class At {
    begin,
    first_key,
    next_key,
    in_key,
    colon,
    value,
    in_name,
    in_arguments,
    in_other,
    in_word,
    value_end
  };
  Object take_byte(char c);
  Object take_key_byte(char c);
  Object begin_value(char c);
  Object take_name_byte(char c);
  Object read_arguments(Input& input);
  Object take_end(char c);
  bool announce_once();

  std::span<const std::string_view> tags_;
  At at_ = At::begin;
  JsonSpan span_;
  JsonArguments json_;
  std::string token_, key_, name_, arguments_;
  bool named_ = false, has_arguments_ = false, begun_ = false;
};

}  // namespace switchyard::chat::formats
