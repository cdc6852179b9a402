#include "bench/model_run.h"

#include <set>

#include "core/error.h"

namespace switchyard::bench {
namespace {

const std::vector<std::string> kModel{
    "decoder_block=mixtral", "base_emb_dim=512",  "base_num_decoder_layers=8", "num_experts=8",
    "num_experts_per_tok=2", "base_mlp_dim=1024", "base_moe_mlp_dim=1024",     "base_num_query_heads=8",
    "base_num_kv_heads=4",   "head_dim=64",       "vocab_size=32000"};
const std::vector<std::string> kRun{"per_device_batch_size=4", "max_target_length=1024", "dtype=bfloat16",
                                    "weight_dtype=bfloat16",   "opt_type=adamw",         "steps=1000",
                                    "dataset_type=synthetic"};

std::string key_of(const std::string& setting) {
  return setting.substr(0, setting.find('='));
}

}  // namespace

Config model_run_config(const std::string& case_name, const std::vector<std::string>& settings) {
  std::set<std::string> given;
  bool other_model = false;
  for (const std::string& setting : settings) {
    given.insert(key_of(setting));
    other_model |= setting.find('=') == std::string::npos || setting.starts_with("model_name=");
  }
  // One width for all layers, which have only experts.
  if (!given.contains("decoder_block") &&
      (given.contains("base_mlp_dim") || given.contains("base_moe_mlp_dim")))
    given.insert({"base_mlp_dim", "base_moe_mlp_dim"});
  std::vector<std::string> all = settings;
  const auto add = [&](const std::vector<std::string>& defaults) {
    for (const std::string& setting : defaults) {
      if (!given.contains(key_of(setting))) all.push_back(setting);
    }
  };
  if (!other_model) add(kModel);
  add(kRun);
  Config config = Config::from_args(all);
  if (config.get_string("dataset_type") != "synthetic") {
    fail_usage("[bench] {} dataset_type={}: expected synthetic", case_name,
               config.get_string("dataset_type"));
  }
  return config;
}

std::string model_label(const Config& config) {
  const std::string& name = config.get_string("model_name");
  return name == "default" ? config.get_string("decoder_block") : name;
}

}  // namespace switchyard::bench
