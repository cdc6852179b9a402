// Envy, the reference's Switch transformers: experts in every interleave_moe_layer_step-th layer, norms of
// queries and keys, and with use_post_ffw_norm a norm of the output of the MLP or the experts. With one
// expert for each token, its weight is 1 (a softmax over one). No Hugging Face model is like it.
//
// A layer:
//   q, k, v = W n(x); q and k normed over a head; rope; h = x + Wo softmax(q·k · head_dim^-1/2) v
//   y = h + f(n(h)), f an MLP or sum of w[e]·E[e]; with use_post_ffw_norm y = h + n(f(n(h)))
#include "models/families/family.h"

namespace switchyard {

const DecoderBlock kEnvyBlock{.name = "envy",
                              .experts = true,
                              .interleaved_experts = true,
                              .scaled_scores = true,
                              .post_mlp_norm = true,
                              .shared_experts = false};

}  // namespace switchyard
