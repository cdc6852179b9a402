#include "chat/formats/object_calls.h"

namespace switchyard::chat::formats {
namespace {

bool is_arguments_key(std::string_view key) {
  return key == "arguments" || key == "parameters";
}

// Reads a JSON text with its quotes. Returns whether it is one.
bool read_json_text(const std::string& token, std::string& text) {
  const Json value = Json::parse(token, nullptr, false);
  if (!value.is_string()) return false;
  text = value.get<std::string>();
  return true;
}

}  // namespace

void ObjectCalls::restart_object() {
  at_ = At::begin;
  named_ = has_arguments_ = begun_ = false;
  arguments_.clear();
}

ObjectCalls::Object ObjectCalls::read_object(Input& input) {
  while (!input.rest().empty()) {
    const bool in_arguments = at_ == At::in_arguments;
    const Object result = in_arguments ? read_arguments(input) : take_byte(input.rest().front());
    if (result == Object::broken) {
      if (begun_) answer_.end_call();
      return result;
    }
    if (!in_arguments) take(input, 1);
    if (result == Object::reading) continue;
    end_call();
    return result;
  }
  return Object::reading;
}

bool ObjectCalls::finish_object(TextEnd end) {
  if (!named_) return false;
  const bool has_none = announce_once();
  if (at_ == At::in_arguments) finish_arguments(json_, end, answer_);
  if (has_none && !has_arguments_ && end == TextEnd::stop) answer_.arguments("{}");
  return true;
}

bool ObjectCalls::take_object_back(Input& input) {
  if (at_ != At::in_arguments || !begun_ || !take_arguments_back(json_, input, answer_)) return false;
  at_ = At::value_end;
  return true;
}

// Takes the input up to the arguments' end.
ObjectCalls::Object ObjectCalls::read_arguments(Input& input) {
  using Result = JsonArguments::Result;
  Result result = Result::reading;
  std::string given;
  std::size_t size = 0;
  for (const char c : input.rest()) {
    result = json_.take(c, given);
    if (result == Result::ended || result == Result::taken_back) break;
    ++size;
    if (result == Result::whole) break;
  }
  take(input, size);
  if (result != Result::reading) at_ = At::value_end;
  const bool cut = result == Result::ended || result == Result::taken_back;
  if (cut && !begun_) return Object::broken;
  if (result == Result::taken_back) input.put_back(json_.taken_back());
  if (cut) json_.close(given);
  begun_ ? answer_.arguments(given) : (void)arguments_.append(given);
  return Object::reading;
}

// Announces the call, and gives the arguments that came before its name. Returns whether there were none.
bool ObjectCalls::announce_once() {
  if (begun_) return false;
  announce(name_);
  begun_ = true;
  answer_.arguments(arguments_);
  return arguments_.empty();
}

ObjectCalls::Object ObjectCalls::take_byte(char c) {
  const bool within = at_ == At::in_key || at_ == At::in_name || at_ == At::in_arguments ||
                      at_ == At::in_other || at_ == At::in_word;
  if (!within && is_space(c)) return Object::reading;
  switch (at_) {
    case At::begin:
      at_ = At::first_key;
      return c == '{' ? Object::reading : Object::broken;
    case At::first_key:
      if (c == '}') return take_end(c);
      [[fallthrough]];
    case At::next_key:
      token_ = '"';
      span_.restart();
      span_.ends_with('"');
      at_ = At::in_key;
      return c == '"' ? Object::reading : Object::broken;
    case At::in_key:
      return take_key_byte(c);
    case At::colon:
      at_ = At::value;
      return c == ':' ? Object::reading : Object::broken;
    case At::value:
      return begin_value(c);
    case At::in_name:
      return take_name_byte(c);
    case At::in_arguments:
      break;
    case At::in_other:
      if (span_.ends_with(c)) at_ = At::value_end;
      return Object::reading;
    case At::in_word:
      if (is_name_character(c) || c == '+') return Object::reading;
      at_ = At::value_end;
      return is_space(c) ? Object::reading : take_end(c);
    case At::value_end:
      return take_end(c);
  }
  return Object::broken;
}

ObjectCalls::Object ObjectCalls::take_key_byte(char c) {
  token_ += c;
  if (!span_.ends_with(c)) return Object::reading;
  at_ = At::colon;
  return read_json_text(token_, key_) ? Object::reading : Object::broken;
}

ObjectCalls::Object ObjectCalls::begin_value(char c) {
  span_.restart();
  const bool opens = c == '"' || c == '{' || c == '[';
  if (opens) span_.ends_with(c);
  if (key_ == "name" && !named_) {
    token_ = '"';
    at_ = At::in_name;
    return c == '"' ? Object::reading : Object::broken;
  }
  if (is_arguments_key(key_) && !has_arguments_) {
    if (c == 'n') {  // null: none
      at_ = At::in_word;
      return Object::reading;
    }
    if (c != '{') return Object::broken;
    has_arguments_ = true;
    at_ = At::in_arguments;
    json_.restart(tags_);
    if (named_) announce_once();
    std::string given;
    json_.take(c, given);
    begun_ ? answer_.arguments(given) : (void)arguments_.append(given);
    return Object::reading;
  }
  at_ = opens ? At::in_other : At::in_word;
  return opens || is_name_character(c) ? Object::reading : Object::broken;
}

ObjectCalls::Object ObjectCalls::take_name_byte(char c) {
  token_ += c;
  if (!span_.ends_with(c)) return Object::reading;
  if (!read_json_text(token_, name_) || name_.empty() || !is_tool(name_)) return Object::broken;
  named_ = true;
  at_ = At::value_end;
  if (has_arguments_) announce_once();
  return Object::reading;
}

ObjectCalls::Object ObjectCalls::take_end(char c) {
  if (c == ',') {
    at_ = At::next_key;
    return Object::reading;
  }
  if (c != '}' || !named_) return Object::broken;
  if (announce_once() && !has_arguments_) answer_.arguments("{}");
  return Object::whole;
}

}  // namespace switchyard::chat::formats
