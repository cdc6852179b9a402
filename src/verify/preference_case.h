// A case of pairs: a Hugging Face folder with an adapter, data.jsonl, and log-probabilities in
// io.safetensors.
#pragma once

#include <filesystem>

#include "verify/case.h"

namespace switchyard {

// True for a folder whose io.safetensors has numbers of pairs.
bool is_preference_case(const std::filesystem::path& folder);
CaseReport verify_preferences(const CaseRequest& request);

}  // namespace switchyard
