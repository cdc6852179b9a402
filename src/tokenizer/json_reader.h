// Reads JSON of unchecked structure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace switchyard {

// A view of an object in a document. All functions throw Error(usage) naming `name` and the key.
class JsonReader {
 public:
  JsonReader(const nlohmann::json& value, std::string name);
  bool has(const char* key) const;  // present and not null
  JsonReader object(const char* key) const;
  std::vector<JsonReader> list(const char* key) const;  // of objects
  std::string text(const char* key) const;
  std::string text(const char* key, const std::string& absent) const;
  bool flag(const char* key, bool absent) const;
  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) const;
  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high, std::int64_t absent) const;
  const nlohmann::json& at(const char* key) const;
  [[noreturn]] void fail(const std::string& message) const;

 private:
  const nlohmann::json* value_;
  std::string name_;
};

}  // namespace switchyard
