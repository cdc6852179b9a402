// Opens the files that the keys routing_record and routing_replay name.
#pragma once

#include <memory>

#include "config/config.h"
#include "models/model_config.h"
#include "routing/routing_index.h"

namespace switchyard {

struct RoutingFiles {
  std::shared_ptr<const RoutingIndex> replay;  // null: no replay was asked for
  std::string record;                          // "": no record was asked for
};

// Error(usage) for a model without experts, for one file in both keys, and as RoutingFile::open.
RoutingFiles routing_files(const Config& config, const ModelConfig& model);

// Returns the layers that are recorded. Error(usage) that names `key` for a model without experts.
RoutedLayers layers_to_route(const ModelConfig& model, const char* key);

// Returns whether `serve` records experts, by routing_record or return_routed_experts. Error(usage) for a
// model without experts.
bool records_routing(const Config& config, const ModelConfig& model);

// Error(usage) "[routing] KEY: …" when the key is set, for a command that does not support it.
void refuse_routing_key(const Config& config, const std::string& key, const std::string& commands);

}  // namespace switchyard
