// Variables in values, as OmegaConf (which MaxText reads its files with) fills them in: ${oc.env:NAME},
// ${oc.env:NAME,else} and ${key}; \${ is ${ itself.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace switchyard {

// The untyped value of a key as given, without its variables filled in; null for one that is None. Called for
// names of declared keys only.
using KeyLookup = std::function<nlohmann::json(const std::string& key)>;

// Fills in the variables of all texts in `value`, lists and maps included. A text that is nothing but a
// variable becomes the variable's value, which may be a list. Error(usage) that names `key` and `source` for
// any other ${, for a name that the environment lacks, and for keys that lead back to themselves.
nlohmann::json filled_in(std::string_view key, const nlohmann::json& value, std::string_view source,
                         const KeyLookup& value_of_key);

}  // namespace switchyard
