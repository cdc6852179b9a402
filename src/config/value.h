// Converts values as users write them into typed values of a declaration.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "config/declaration.h"

namespace switchyard {

// Parses the text after `key=` into an untyped value: a string, or (nested) arrays of strings when it is
// written as a list. Throws Error(usage) that names the key when a list does not parse.
nlohmann::json untyped_value(std::string_view key, const std::string& text);

// Converts a value to the declaration's type and checks it. Accepts an untyped or a typed value: True,
// 32_000, 1e-5, None, empty. Throws Error(usage) `[config] key: expected …, got … (source)`.
nlohmann::json typed_value(const KeyDeclaration& key, const nlohmann::json& value, std::string_view source);

// The value as a user would write it.
std::string value_text(const nlohmann::json& value);

}  // namespace switchyard
