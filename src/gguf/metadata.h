// Typed access to the metadata of a GGUF file below one prefix ("qwen3moe", "tokenizer"). A missing key or a
// value of the wrong type is Error(usage) that names the key. When a single value is read, a list of equal
// values counts as that value.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf_file.h"

namespace switchyard {

class GgufMetadata {
 public:
  GgufMetadata(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  bool has(std::string_view key) const { return file_.metadata().contains(full(key)); }
  std::int64_t integer(std::string_view key) const;  // 0 to 2^40
  std::int64_t integer(std::string_view key, std::int64_t absent) const {
    return has(key) ? integer(key) : absent;
  }
  // A number for each of `count` layers: the first of a list that has at least as many, or one for all.
  std::vector<std::int64_t> integers(std::string_view key, std::int64_t count) const;
  std::vector<double> numbers(std::string_view key, std::int64_t count) const;
  // For a float32: the double with the shortest decimal form, as a person would have written it.
  double number(std::string_view key) const;
  double number(std::string_view key, double absent) const { return has(key) ? number(key) : absent; }
  bool flag(std::string_view key, bool absent) const;
  std::string text(std::string_view key) const;
  const nlohmann::json& list(std::string_view key) const;
  // The first `count` flags of a list that has at least as many; numbers 0 and 1 are flags, too.
  std::vector<bool> flags(std::string_view key, std::int64_t count) const;
  // The value, or null.
  nlohmann::json value(std::string_view key) const { return has(key) ? at(key) : nlohmann::json(); }
  bool is_list(std::string_view key) const { return value(key).is_array(); }
  // The keys below the prefix whose values nobody has asked for.
  std::vector<std::string> unread() const;
  // An id below `ids`; empty without the key.
  std::optional<std::size_t> id(std::string_view key, std::size_t ids) const;

  [[noreturn]] void wrong(std::string_view key, std::string_view expected) const;

 private:
  std::string full(std::string_view key) const { return prefix_ + "." + std::string(key); }
  const nlohmann::json& at(std::string_view key) const;
  const nlohmann::json& one(std::string_view key) const;
  const nlohmann::json& of_layer(std::string_view key, std::size_t i) const;
  std::int64_t as_integer(std::string_view key, const nlohmann::json& value) const;
  double as_number(std::string_view key, const nlohmann::json& value) const;

  const GgufFile& file_;
  std::string prefix_;
  mutable std::set<std::string, std::less<>> read_;
};

}  // namespace switchyard
