// The adapter that the keys lora_rank, lora_target and so on describe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "models/adapter.h"
#include "models/families/family.h"

namespace switchyard {

// True when enable_lora, lora_rank above 0, or a folder to go on from asks for an adapter that trains.
bool trains_adapter(const Config& config);
// Returns the folder of the adapter that training goes on from; "" without. Error(usage) for two folders.
std::string adapter_to_go_on_from(const Config& config);

// The adapter of lora_rank and the keys beside it. `family` gives the names of Hugging Face; null: there are
// none. Error(usage) in one line for a word that matches no weight, and for keys that have no adapter.
Adapter adapter_of_keys(const Config& config, const ModelConfig& model, const ModelFamily* family);

// Error(usage) for a key that would change the base beside an adapter, and for a key of adapters without one.
void check_adapter_keys(const Config& config);

// Returns a run's first lines: ranks, factors, adapted weights, numbers of parameters, and what is left out.
std::vector<std::string> adapter_lines(const Adapter& adapter, const ModelConfig& model);

}  // namespace switchyard
