// The error of a setting or argument that a key names.
#pragma once

#include <string>
#include <utility>

#include "switchyard/error.h"

namespace switchyard {

// Error(usage) with its parts, for programs that show them in another form. `value` is as it was given;
// `expected` is in words: "an integer of at least 1". For an unknown key `value` is "", and `expected` the
// nearest known one, or "".
class SettingError : public Error {
 public:
  SettingError(const std::string& message, std::string key, std::string value, std::string expected)
      : Error(Kind::usage, message),
        key_(std::move(key)),
        value_(std::move(value)),
        expected_(std::move(expected)) {}
  const std::string& key() const { return key_; }
  const std::string& value() const { return value_; }
  const std::string& expected() const { return expected_; }

 private:
  std::string key_, value_, expected_;
};

}  // namespace switchyard
