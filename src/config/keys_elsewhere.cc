// Declares the keys in configs/inert_keys.json, so that the reference's command lines and files are read.
#include <map>

#include "config/declaration.h"
#include "config/inert_keys.h"
#include "core/error.h"

namespace switchyard {
namespace {

KeyDeclaration key_of_default(const std::string& name, const nlohmann::json& value, const std::string& why) {
  const bool is_text_list = value.is_array() && !value.empty() && value[0].is_string();
  if (value.is_boolean()) return boolean_key(name, value.get<bool>(), why);
  if (value.is_number_integer()) return integer_key(name, value.get<std::int64_t>(), any_number(), why);
  if (value.is_number_float()) return float_key(name, value.get<double>(), any_number(), why);
  if (value.is_null()) return optional(text_key(name, "", why));
  if (value.is_string()) return text_key(name, value.get<std::string>(), why);
  if (is_text_list) return text_list_key(name, value.get<std::vector<std::string>>(), why);
  return structure_key(name, value, why);
}

// A derived key's text says which keys to set instead.
KeyDeclaration key_of_group(KeyStatus status, const std::string& name, const nlohmann::json& value,
                            const std::string& why) {
  KeyDeclaration key = status == KeyStatus::derived
                           ? optional(text_key(name, "", why + " " + value.get<std::string>()))
                           : key_of_default(name, value, why);
  key.status = status;
  return key;
}

}  // namespace

std::vector<KeyDeclaration> keys_from_elsewhere() {
  const std::map<std::string, KeyStatus> statuses{
      {"inert", KeyStatus::inert}, {"planned", KeyStatus::planned}, {"derived", KeyStatus::derived}};
  std::vector<KeyDeclaration> keys;
  const auto file = nlohmann::ordered_json::parse(kInertKeys);
  for (const auto& group : file.at("groups")) {
    const KeyStatus status = statuses.at(group.at("status").get<std::string>());
    const auto why = group.at("why").get<std::string>();
    for (const auto& [name, value] : group.at("keys").items())
      keys.push_back(key_of_group(status, name, nlohmann::json(value), why));
  }
  return keys;
}

}  // namespace switchyard
