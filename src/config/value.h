// Values as users write them -> typed values of a declaration.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "config/declaration.h"

namespace switchyard {

// The text after `key=` as an untyped value: a string, or (nested) arrays of strings when it is written as a
// list. Text that is only an unexpanded `${NAME}` is empty, as a shell without that variable would have made
// it. Throws Error(usage) naming the key where a list does not parse.
nlohmann::json untyped_value(std::string_view key, const std::string& text);

// The value with the declaration's type, checked. Accepts an untyped value or one that already has a type:
// True, 32_000, 1e-5, None, empty. Throws Error(usage) `[config] key: expected …, got … (source)`.
nlohmann::json typed_value(const KeyDeclaration& key, const nlohmann::json& value, std::string_view source);

// As a user would write it.
std::string value_text(const nlohmann::json& value);

}  // namespace switchyard
