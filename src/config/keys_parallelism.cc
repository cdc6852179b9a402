// Declares keys of the mesh, the axis rules and the sizes of axes.
#include "config/declaration.h"

namespace switchyard {
namespace {

// ici_X_parallelism and dcn_X_parallelism: X's size within a slice and over slices; -1 takes the rest.
void add_axis(std::vector<KeyDeclaration>& keys, const std::string& axis, const std::string& what,
              bool is_built) {
  for (const std::string level : {"ici", "dcn"}) {
    const bool takes_rest = (level == "ici" && axis == "fsdp") || (level == "dcn" && axis == "data");
    KeyDeclaration key = integer_key(
        level + "_" + axis + "_parallelism", takes_rest ? -1 : 1, at_least_or(1, -1),
        (level == "ici" ? "ranks of a slice over " : "slices over ") + what + "; -1: what is left");
    keys.push_back(is_built ? key : planned(key));
  }
}

}  // namespace

std::vector<KeyDeclaration> parallelism_keys() {
  std::vector<KeyDeclaration> keys;
  add_axis(keys, "data", "data: batch", true);
  add_axis(keys, "fsdp", "fsdp: batch, and weights kept in parts", true);
  add_axis(keys, "expert", "expert: experts, and batch", true);
  add_axis(keys, "tensor", "tensor: heads, MLP width, vocabulary", true);
  add_axis(keys, "fsdp_transpose", "fsdp_transpose: the other dim of weights", true);
  add_axis(keys, "context", "context: sequence", true);
  add_axis(keys, "context_usp_ulysses", "context_usp_ulysses: sequence, by heads", false);
  add_axis(keys, "context_autoregressive", "context_autoregressive: cached sequence", false);
  add_axis(keys, "sequence", "sequence", false);
  add_axis(keys, "tensor_sequence", "tensor_sequence: norms over the sequence", true);
  add_axis(keys, "pipeline", "stage: layers", true);
  add_axis(keys, "autoregressive", "autoregressive: heads, MLP width, as tensor does", true);
  add_axis(keys, "diloco", "diloco: replicas synchronised now and then", false);
  const std::vector<KeyDeclaration> more = {
      integer_key("num_slices", -1, at_least_or(1, -1), "slices of the machine; -1: 1"),
      text_key("custom_mesh_and_rule", "",
               "a file of configs/mesh, or a path: replaces mesh axes, rules and data sharding"),
      text_list_key("mesh_axes", {}, "mesh axes, slowest first"),
      structure_key("logical_axis_rules", nlohmann::json::array(),
                    "[logical dim, mesh axes] in order; a dim's rules replace those of the file below"),
      boolean_key("override_logical_axis_rules", false,
                  "logical_axis_rules of a model file or the command line replace all rules below"),
      structure_key("data_sharding", nlohmann::json::array(),
                    "mesh axes over which the input batch is split"),
      text_list_key("input_data_sharding_logical_axes",
                    {"activation_embed_and_logits_batch", "activation_norm_length"},
                    "logical dims of the input batch"),
      inert(text_key("context_sharding", "context", "axis of the sequence; the rules say it here")),
      inert(text_key("ulysses_context_sharding", "context_usp_ulysses", "axis of the sequence by heads")),
      text_key("custom_mesh_and_rule_for_eval", "",
               "a mesh file whose rules hold while a training evaluates, on the mesh of the training, and "
               "which `eval` takes for custom_mesh_and_rule; empty: the layout of the run"),
      inert(boolean_key("shard_optimizer_over_data", false,
                        "optimizer state is always split over data here, and every axis its weight leaves")),
      inert(boolean_key("dense_fsdp_use_two_stage_all_gather", false,
                        "how the reference gathers dense weights")),
      choice_key("overlap_communication", "auto", one_of({"auto", "on", "off"}),
                 "gather the next layer's weights, and the next chunk's tokens, while this one computes; the "
                 "same numbers with one layer's gathered weights more in memory; auto: where ranks are in "
                 "several processes without GPUs"),
      choice_key("shard_mode", "auto", one_of({"auto", "explicit"}),
                 "explicit: an activation that a product would move although no rule says so is an error"),
      inert(float_key("sharding_tolerance", 0.02, at_least(0),
                      "share of weights that may stay whole in the reference")),
      integer_key("num_layers_per_pipeline_stage", 1, at_least(1),
                  "layers of a block of a stage, where given; num_pipeline_repeats is what that makes"),
      integer_key("num_pipeline_repeats", -1, at_least_or(1, -1),
                  "blocks of layers of each stage, so that a microbatch goes round as often and the stages "
                  "wait less; -1: one"),
      integer_key("pipeline_parallel_layers", -1, at_least_or(1, -1), "layers in the pipeline; -1: all"),
      integer_key("num_pipeline_microbatches", -1, at_least_or(1, -1),
                  "parts of a batch that go through the stages one behind the other; -1: as many as stages"),
      choice_key(
          "pipeline_schedule", "1f1b", one_of({"1f1b", "gpipe"}),
          "gpipe: all forward passes, then all backward passes; 1f1b: the same numbers, fewer activations"),
      planned(boolean_key("pipeline_delay_activation_forwarding", false, "overlap sends of the pipeline")),
      inert(boolean_key("pipeline_fsdp_ag_once", false, "when the reference's pipeline gathers weights")),
      inert(
          boolean_key("pipeline_fsdp_ag_per_repeat", false, "when the reference's pipeline gathers weights")),
      inert(boolean_key("scan_pipeline_iterations", true, "how the reference compiles the pipeline")),
      inert(boolean_key("scan_pipeline_repeats", false, "how the reference compiles the pipeline")),
      inert(boolean_key("scan_layers_per_stage", false, "how the reference compiles the pipeline")),
      inert(boolean_key("set_remat_policy_on_pipeline_iterations", true,
                        "how the reference compiles the pipeline")),
      inert(boolean_key("set_remat_policy_on_layers_per_stage", false,
                        "how the reference compiles the pipeline")),
      boolean_key(
          "context_parallel_load_balance", true,
          "spread the queries of a split sequence so that causal attention costs every rank the same"),
      choice_key("context_parallel_strategy", "all_gather", one_of({"all_gather"}, {"ring"}),
                 "how the keys and values of a split sequence come together"),
      inert(text_key("context_parallel_reorder_strategy", "auto",
                     "queries are reordered inside attention only")),
      planned(boolean_key("enable_diloco", false, "replicas synchronised now and then")),
      inert(integer_key("diloco_sync_period", 36, at_least(1), "only with enable_diloco")),
      inert(float_key("diloco_outer_lr", 0.3, at_least(0), "only with enable_diloco")),
      inert(float_key("diloco_outer_momentum", 0.9, at_least(0), "only with enable_diloco")),
      planned(boolean_key("enable_streaming_diloco", false, "fragments synchronised in turn")),
      inert(
          optional(integer_key("num_diloco_fragments", 0, at_least(1), "only with enable_streaming_diloco"))),
      inert(boolean_key("use_sequential_layers", false, "only with enable_streaming_diloco")),
      inert(integer_key("num_communication_overlapping_steps", 0, at_least(0),
                        "only with enable_streaming_diloco")),
      inert(float_key("communication_overlapping_alpha", 0.0, any_number(),
                      "only with enable_streaming_diloco")),
  };
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

}  // namespace switchyard
