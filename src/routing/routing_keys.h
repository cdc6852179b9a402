// The files that routing_record and routing_replay name.
#pragma once

#include <memory>

#include "config/config.h"
#include "models/model_config.h"
#include "routing/routing_index.h"

namespace switchyard {

struct RoutingFiles {
  std::shared_ptr<const RoutingIndex> replay;  // null: not asked for
  std::string record;                          // "": not asked for
};

// Error(usage) for a model without experts, for one file under both keys, and as RoutingFile::open.
RoutingFiles routing_files(const Config& config, const ModelConfig& model);

// Error(usage) "[routing] KEY: …" where the key is set, for a command that does no such thing.
void refuse_routing_key(const Config& config, const std::string& key, const std::string& commands);

}  // namespace switchyard
