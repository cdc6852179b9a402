// Parses key=value of `switchyard bench`: each case declares keys, which are checked before it measures.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace switchyard::bench {

struct Key {
  std::string name;
  std::string fallback;  // the value when the key is not given
  std::string help;
};

// The keys of one call. Every function throws Error(usage) that names case, key and value.
class Keys {
 public:
  // `settings` are key=value; the last one wins when a key is given twice. `with_config`: an undeclared key
  // is a config key, and the config checks it.
  Keys(std::string case_name, std::vector<Key> declared, std::span<const std::string> settings,
       bool with_config = false);

  const std::string& case_name() const { return case_name_; }
  const std::vector<std::string>& config_settings() const { return config_settings_; }
  bool given(const std::string& name) const { return given_.contains(name); }
  // True when any of the names was given.
  bool any_given(std::initializer_list<const char*> names) const;
  const std::string& text(const std::string& name) const;
  std::int64_t integer(const std::string& name, std::int64_t least = 1) const;  // at most 2^31 - 1
  // The words of a comma-separated value, each one of `allowed`; "all" means all of them.
  std::vector<std::string> words(const std::string& name, const std::vector<std::string>& allowed) const;
  std::vector<std::int64_t> integers(const std::string& name, std::int64_t least = 1) const;

 private:
  std::int64_t number(const std::string& name, const std::string& value, std::int64_t least) const;

  std::string case_name_;
  std::vector<Key> declared_;
  std::map<std::string, std::string> given_;
  std::vector<std::string> config_settings_;
};

}  // namespace switchyard::bench
