// Tells what people mean by words that are no keys here: names from other programs, options, and `=` with
// spaces around it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// The keys that act where another program's name was written: "learning_rate" for "lr"; for "epochs" the two
// that end a run. The name may be written as an option (--num-epochs). Empty for other words, and for the
// name of a key.
std::string_view keys_meant_by(std::string_view name);
// The key that acts where an inert key of the reference was typed: "per_device_batch_size" for "batch_size".
std::string_view acting_keys_for(std::string_view inert);

// All keys, or texts that begin with one, that these name.
std::vector<std::string_view> all_meant_keys();

// "steps=10" for `--steps 10`, `--steps=10`, `steps 10`, `steps = 10` and `steps =10`, where `arguments[at]`
// is the word with the name; the name is a key, or another program's for one key. Empty for other words.
std::string setting_meant(std::span<const std::string> arguments, std::size_t at);

}  // namespace switchyard
