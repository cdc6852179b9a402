#include <fmt/format.h>

#include "chat/jinja/value.h"

namespace switchyard::jinja {

const Value* Arguments::find(std::string_view name) const {
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Parameters::Parameters(std::string_view function, const Arguments& arguments,
                       std::initializer_list<const char*> names, std::size_t required)
    : function_(function), values_(names.size(), nullptr) {
  if (arguments.positional.size() > names.size()) {
    fail_other(fmt::format("{}() takes at most {} arguments ({} given)", function, names.size(),
                           arguments.positional.size()));
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [key, value] : arguments.named) {
    std::size_t i = 0;
    while (i < names.size() && key != names.begin()[i]) ++i;
    if (i == names.size()) {
      fail_other(fmt::format("{}() got an unexpected keyword argument '{}'", function, key));
    }
    if (values_[i] != nullptr)
      fail_other(fmt::format("{}() got multiple values for argument '{}'", function, key));
    values_[i] = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) {
      fail_other(fmt::format("{}() missing a required argument: '{}'", function, names.begin()[i]));
    }
  }
}

const Value& Parameters::operator[](std::size_t index) const {
  static const Value none;
  return has(index) ? *values_[index] : none;
}

bool Parameters::flag(std::size_t index, bool otherwise) const {
  return has(index) ? is_true(*values_[index]) : otherwise;
}

Integer Parameters::integer(std::size_t index, Integer otherwise) const {
  if (!has(index)) return otherwise;
  const auto number = values_[index]->integer();
  if (!number) {
    fail_type(fmt::format("{}(): '{}' object cannot be interpreted as an integer", function_,
                          type_name(*values_[index])),
              *values_[index]);
  }
  return *number;
}

Text Parameters::text(std::size_t index, std::string_view otherwise) const {
  if (!has(index)) return Text(std::string(otherwise));
  const Text* text = values_[index]->text();
  if (text == nullptr) {
    fail_type(fmt::format("{}(): argument must be str, not {}", function_, type_name(*values_[index])),
              *values_[index]);
  }
  return *text;
}

}  // namespace switchyard::jinja
