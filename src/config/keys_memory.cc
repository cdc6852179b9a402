// Declares keys of memory: what is kept for backward, recomputed or moved to the host.
#include "config/declaration.h"

namespace switchyard {
namespace {

KeyDeclaration tensor_key(const std::string& name, const std::string& what,
                          const std::string& value = "remat") {
  return choice_key(name, value, one_of({"remat", "device", "offload"}),
                    what +
                        " under remat_policy=custom: recomputed, kept, or (offload) kept in pinned memory of "
                        "the host where the device is a GPU, and as device elsewhere");
}

}  // namespace

std::vector<KeyDeclaration> memory_keys() {
  return {
      choice_key(
          "remat_policy", "full",
          one_of({"none", "full", "minimal", "minimal_with_context", "minimal_flash", "minimal_offloaded",
                  "save_dot_with_context_except_mlp", "save_dot_except_mlpwi", "save_dot_except_mlp",
                  "save_qkv_proj", "save_out_proj", "qkv_proj_offloaded", "custom"}),
          "which values of a layer are kept for backward; full: its input only; none: all"),
      tensor_key("decoder_layer_input", "input of a layer", "device"),
      tensor_key("context", "output of attention before its projection"),
      tensor_key("mlpwi", "gate and up projections together"),
      tensor_key("mlpwi_0", "gate projection"),
      tensor_key("mlpwi_1", "up projection"),
      tensor_key("mlpwo", "down projection"),
      tensor_key("moe_mlpwi_0", "gate projection of the experts"),
      tensor_key("moe_mlpwi_1", "up projection of the experts"),
      tensor_key("moe_mlpwo", "down projection of the experts"),
      tensor_key("moe_x_sorted", "rows as they come to the experts, after all gathers and sends"),
      tensor_key("query_proj", "query projection"),
      tensor_key("key_proj", "key projection"),
      tensor_key("value_proj", "value projection"),
      inert(tensor_key("kv_proj", "of keys and values that share a projection, which no model has here")),
      tensor_key("qkv_proj", "query, key and value projections"),
      tensor_key("out_proj", "output projection of attention"),
      tensor_key("query_wa_proj", "query latent of MLA"),
      tensor_key("kv_wa_proj", "key-value latent of MLA"),
      tensor_key("mla_q", "queries of MLA"),
      tensor_key("mla_kv", "keys and values of MLA"),
      tensor_key("attention_out", "output of the attention block"),
      inert(choice_key("moe_routing_maps", "remat", one_of({"remat", "device", "offload"}),
                       "backward never chooses experts again here: routing is always kept")),
      planned(tensor_key("engram", "n-gram memory")),
      planned(tensor_key("indexer_cutoff_threshold", "cutoff of the indexer")),
      boolean_key("optimizer_memory_host_offload", false,
                  "on a GPU: optimizer state lies in pinned memory of the host and visits the GPU for "
                  "updates; nothing on the CPU"),
      boolean_key("parameter_memory_host_offload", false,
                  "on a GPU: weights lie in pinned memory of the host and are fetched for each use, as with "
                  "weight_places=.*=host; nothing on the CPU, whose memory that is"),
      text_list_key("weight_places", {},
                    "where weights lie on a GPU: a list of PATTERN=device and PATTERN=host, of which the "
                    "first whose regular expression is found in a weight's name counts; all others: device"),
      inert(boolean_key("scan_layers", true, "how the reference stacks layers")),
      inert(integer_key("param_scan_axis", 1, at_least(0), "how the reference stacks layers")),
      inert(boolean_key("force_unroll", false, "how the reference stacks layers")),
  };
}

}  // namespace switchyard
