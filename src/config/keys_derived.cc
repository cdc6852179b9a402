// What the reference computes from other keys: it lists them as keys, and nobody can set them.
#include "config/declaration.h"

namespace switchyard {

std::vector<KeyDeclaration> derived_keys() {
  const struct {
    const char* name;
    const char* instead;
  } table[] = {
      {"emb_dim", "base_emb_dim"},
      {"mlp_dim", "base_mlp_dim"},
      {"moe_mlp_dim", "base_moe_mlp_dim"},
      {"num_decoder_layers", "base_num_decoder_layers"},
      {"num_query_heads", "base_num_query_heads"},
      {"num_kv_heads", "base_num_kv_heads"},
      {"ici_parallelism", "the keys ici_…_parallelism"},
      {"dcn_parallelism", "the keys dcn_…_parallelism"},
      {"num_target_devices", "ranks"},
      {"num_diloco_replicas", "ici_diloco_parallelism"},
      {"using_pipeline_parallelism", "ici_pipeline_parallelism"},
      {"global_batch_size_to_load", "per_device_batch_size"},
      {"global_batch_size_to_train_on", "per_device_batch_size"},
      {"micro_batch_size_to_train_on", "per_device_batch_size"},
      {"global_batch_size_to_load_eval", "eval_per_device_batch_size"},
      {"global_batch_size_to_eval_on", "eval_per_device_batch_size"},
      {"micro_batch_size_to_eval_on", "eval_per_device_batch_size"},
      {"global_batch_size_to_load_start", "per_device_batch_size_start"},
      {"global_batch_size_to_load_increment", "per_device_batch_size_increment"},
      {"rampup_samples_per_increment_to_load", "global_rampup_samples"},
      {"rampup_end_step", "global_rampup_samples"},
      {"tensors_on_device", "remat_policy=custom and the keys of its tensors"},
      {"tensors_to_offload", "remat_policy=custom and the keys of its tensors"},
      {"logical_axis_rules_for_eval", "custom_mesh_and_rule_for_eval"},
      {"checkpoint_dir", "base_output_directory and run_name"},
      {"metrics_dir", "base_output_directory and run_name"},
      {"tensorboard_dir", "base_output_directory and run_name"},
      {"managed_mldiagnostics_dir", "base_output_directory and run_name"},
  };
  std::vector<KeyDeclaration> keys;
  for (const auto& [name, instead] : table) keys.push_back(derived_key(name, instead));
  return keys;
}

}  // namespace switchyard
