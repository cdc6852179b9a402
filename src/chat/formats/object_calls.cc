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
    const Object result = take_byte(input.rest().front());
    if (result == Object::broken) {
      if (begun_) answer_.end_call();
      return result;
    }
    take(input, 1);
    if (result == Object::reading) continue;
    end_call();
    return result;
  }
  return Object::reading;
}

bool ObjectCalls::finish_object(TextEnd end) {
  if (!named_) return false;
  if (!announce_once() || has_arguments_ || end == TextEnd::length) return true;
  answer_.arguments("{}");
  return true;
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
      return take_argument_byte(c);
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
    if (c != '{') return Object::broken;
    has_arguments_ = true;
    at_ = At::in_arguments;
    if (named_) announce_once();
    begun_ ? answer_.arguments("{") : arguments_.push_back('{');
    return Object::reading;
  }
  at_ = opens ? At::in_other : At::in_word;
  return opens || is_name_character(c) ? Object::reading : Object::broken;
}

ObjectCalls::Object ObjectCalls::take_name_byte(char c) {
  token_ += c;
  if (!span_.ends_with(c)) return Object::reading;
  if (!read_json_text(token_, name_) || name_.empty() || !accepts(name_)) return Object::broken;
  named_ = true;
  at_ = At::value_end;
  if (has_arguments_) announce_once();
  return Object::reading;
}

ObjectCalls::Object ObjectCalls::take_argument_byte(char c) {
  if (begun_)
    answer_.arguments(std::string_view(&c, 1));
  else
    arguments_ += c;
  if (span_.ends_with(c)) at_ = At::value_end;
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
