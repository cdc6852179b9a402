// Typed access to a config.json of Hugging Face.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace switchyard {

// In a config.json an absent key and null mean the same. Errors are Error(usage) that name key and value.
// `part` begins the message for a nested object ("rope ").
class HubConfig {
 public:
  explicit HubConfig(const nlohmann::json& values, std::string part = {});

  bool has(const char* key) const { return values_.contains(key) && !values_[key].is_null(); }
  bool is_null(const char* key) const { return values_.contains(key) && values_[key].is_null(); }
  const nlohmann::json& at(const char* key) const { return values_[key]; }
  const nlohmann::json& all() const { return values_; }

  std::int64_t integer(const char* key) const;  // from 0 to 2^40
  std::int64_t positive(const char* key) const;
  std::int64_t integer(const char* key, std::int64_t absent) const {
    return has(key) ? integer(key) : absent;
  }
  double number(const char* key) const;
  double number(const char* key, double absent) const { return has(key) ? number(key) : absent; }
  bool flag(const char* key, bool absent) const;
  std::string text(const char* key, const char* absent) const;
  std::string type() const { return text("model_type", ""); }

  [[noreturn]] void wrong(const char* key, std::string_view expected) const;

 private:
  void require(const char* key) const;
  const nlohmann::json& values_;
  std::string part_;
};

}  // namespace switchyard
