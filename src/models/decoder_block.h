// What the reference's value of `decoder_block` says beside all other keys.
#pragma once

#include <string>
#include <string_view>

namespace switchyard {

struct DecoderBlock {
  std::string_view name;
  bool experts = false;           // it has MoE layers: num_experts is 2 or more
  bool latent_attention = false;  // attention_type=mla, and no other
  // Attention gives latent tokens, the experts work on them, and a projection leads back to emb.
  bool latent_experts = false;
  // Under compat=maxtext scores are scaled apart from the query's weights; without it routed_score_func=none
  // is a softmax over all experts.
  bool as_qwen3 = false;
};

// Of that name (models/families/registry.cc). Error(usage) that lists all of them.
const DecoderBlock& decoder_block(const std::string& name);

}  // namespace switchyard
