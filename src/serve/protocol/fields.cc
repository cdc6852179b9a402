#include "serve/protocol/fields.h"

#include <fmt/format.h>

#include <algorithm>

namespace switchyard::serve {

using nlohmann::json;

bool nests_deeper(std::string_view text, std::size_t levels) {
  std::size_t level = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_text = false;
      }
    } else if (c == '"') {
      in_text = true;
    } else if (c == '[' || c == '{') {
      if (++level > levels) return true;
    } else if ((c == ']' || c == '}') && level > 0) {
      --level;
    }
  }
  return false;
}

json parse_object(const std::string& body) {
  if (nests_deeper(body, kDeepestJson))
    throw BadRequest("", fmt::format("the body has lists and objects in more than {} levels", kDeepestJson));
  json object;
  try {
    object = json::parse(body);
  } catch (const json::exception& error) {
    throw BadRequest("", fmt::format("the body is not JSON: {}", error.what()));
  }
  if (!object.is_object()) throw BadRequest("", "the body is not a JSON object");
  return object;
}

const json* Fields::find(const std::string& name) {
  known_.insert(name);
  const auto field = object_.find(name);
  return field == object_.end() || field->is_null() ? nullptr : &*field;
}

std::int64_t Fields::integer(const std::string& name, std::int64_t otherwise, std::int64_t least,
                             std::int64_t most) {
  const json* const field = find(name);
  if (field == nullptr) return otherwise;
  if (!field->is_number_integer() || *field < least || *field > most)
    throw BadRequest(name, fmt::format("{}: expected a whole number of {} to {}, got {}", name, least, most,
                                       shown(*field)));
  return field->get<std::int64_t>();
}

double Fields::number(const std::string& name, double otherwise, double least, double most) {
  const json* const field = find(name);
  if (field == nullptr) return otherwise;
  if (!field->is_number() || !(field->get<double>() >= least && field->get<double>() <= most))
    throw BadRequest(
        name, fmt::format("{}: expected a number of {} to {}, got {}", name, least, most, shown(*field)));
  return field->get<double>();
}

bool Fields::boolean(const std::string& name) {
  const json* const field = find(name);
  if (field == nullptr) return false;
  if (!field->is_boolean())
    throw BadRequest(name, fmt::format("{}: expected true or false, got {}", name, shown(*field)));
  return field->get<bool>();
}

std::vector<std::string> Fields::strings(const std::string& name) {
  const json* const field = find(name);
  if (field == nullptr) return {};
  if (field->is_string()) return {field->get<std::string>()};
  if (!field->is_array() ||
      !std::all_of(field->begin(), field->end(), [](const json& x) { return x.is_string(); }))
    throw BadRequest(name,
                     fmt::format("{}: expected a text or a list of texts, got {}", name, shown(*field)));
  return field->get<std::vector<std::string>>();
}

void Fields::only(const std::string& name, const json& value) {
  const json* const field = find(name);
  if (field != nullptr && *field != value)
    throw BadRequest(name, fmt::format("{}: expected {}, as nothing else is built, got {}", name,
                                       value.dump(), shown(*field)));
}

void Fields::refuse_others() const {
  for (const auto& [name, value] : object_.items()) {
    if (!known_.contains(name))
      throw BadRequest(name, fmt::format("{}: unknown field", name), "unknown_field");
  }
}

std::string Fields::shown(const json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  const std::string text = to_text(value);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

std::string to_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string event_text(const json& value) {
  return fmt::format("data: {}\n\n", to_text(value));
}

}  // namespace switchyard::serve
