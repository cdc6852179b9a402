#include "routing/routing_keys.h"

#include <filesystem>

#include "core/error.h"
#include "routing/routing_blocks.h"

namespace switchyard {
RoutedLayers layers_to_route(const ModelConfig& model, const char* key) {
  RoutedLayers routed = routed_layers(model);
  if (routed.layers.empty())
    fail_usage("[routing] {}: expected a model with experts, {} has none", key, model.name);
  return routed;
}

RoutingFiles routing_files(const Config& config, const ModelConfig& model) {
  RoutingFiles files{nullptr, config.get_string("routing_record")};
  const std::string& replay = config.get_string("routing_replay");
  if (files.record.empty() && replay.empty()) return files;
  const RoutedLayers routed = layers_to_route(model, replay.empty() ? "routing_record" : "routing_replay");
  std::error_code error;
  if (!replay.empty() && (files.record == replay || std::filesystem::equivalent(files.record, replay, error)))
    fail_usage("[routing] routing_record={}: expected another file than routing_replay", files.record);
  if (!replay.empty()) files.replay = std::make_shared<const RoutingIndex>(RoutingFile::open(replay, routed));
  return files;
}

bool records_routing(const Config& config, const ModelConfig& model) {
  const bool returned = config.get_bool("return_routed_experts");
  if (returned) layers_to_route(model, "return_routed_experts");
  return returned || !config.get_string("routing_record").empty();
}

void refuse_routing_key(const Config& config, const std::string& key, const std::string& commands) {
  if (!config.get_string(key).empty()) fail_usage("[routing] {}: a key of {} alone", key, commands);
}

}  // namespace switchyard
