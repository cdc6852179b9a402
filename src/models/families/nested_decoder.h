// Models that see images as well: config.json holds their text decoder in `text_config`, and its tensors have
// names of their own. Here the decoder is read as the model that it is alone.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/hub_weights.h"

namespace switchyard {

// The decoder's config: that of `text_config`, with what the whole model states for it. Any other config as
// it is. Error(usage) where such a model has no `text_config`.
nlohmann::json decoder_config(const nlohmann::json& hub_config);

// The weights with the decoder's tensors under the names that they have in a model of text alone. Other
// tensors keep theirs (is_of_another_part). `hub_config` is the whole file.
std::shared_ptr<const HubWeights> decoder_weights(const nlohmann::json& hub_config,
                                                  std::shared_ptr<const HubWeights> weights);

// Whether a tensor of that name belongs to what such models have beside their decoder.
bool is_of_another_part(const std::string& name);

}  // namespace switchyard
