// Fills in optional members of a request that a template reads, where the template fails without them.
#pragma once

#include <nlohmann/json.hpp>
#include <span>

namespace switchyard::chat {

using Json = nlohmann::ordered_json;

// Fills in something of what the template is given (`messages`, `tools`, …). What is there stays.
using Repair = void (*)(Json& given);

// The repairs, to be tried in this order, each after those before it.
std::span<const Repair> template_repairs();

}  // namespace switchyard::chat
