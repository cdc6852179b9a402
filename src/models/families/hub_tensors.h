// Maps the tensors of Hugging Face models to our parameters.
//
// Our names and shapes (M emb_dim, V vocab, N heads, D head_dim, H mlp width, E experts): `embedding` [V,M],
// `final_norm` [M], `head` [M,V] (absent when tied), and for layer i `layers.<i>.` followed by
//   pre_attention_norm, post_attention_norm [M]
//   attention.query [M,N,D]  attention.key, attention.value [M,Nkv,D]  attention.out [N,D,M]
//   attention.q_norm, attention.k_norm [D]
//   attention.wq_a [M,r]  attention.q_a_norm [r]  attention.wq_b [r,N,D]              (MLA with q_lora)
//   attention.wkv_a [M,kv_lora+rope]  attention.kv_a_norm [kv_lora]  attention.wkv_b [kv_lora,N,nope+v]
//   attention.indexer.wq_b [r,I,W]  .wk [M,W]  .k_norm, .k_norm_bias [W]  .weights [M,I]   (I heads, width W)
//   attention.gate [M,N,D]                                                     (of attention's output)
//   delta.query, delta.key [M,Nk,D]  delta.value, delta.gate [M,Nv,Dv]  delta.out [Nv,Dv,M]
//   delta.strength, delta.decay [M,Nv]  delta.decay_rate, delta.decay_bias [Nv]  delta.norm [Dv]
//   delta.query_conv, delta.key_conv [Nk,D,taps]  delta.value_conv [Nv,Dv,taps]     (gated delta net)
//   mlp.wi_0 (gate), mlp.wi_1 (up) [M,H]  mlp.wo [H,M]
//   moe.gate [M,E]  moe.gate_bias [E]  moe.wi_0, moe.wi_1 [E,M,H]  moe.wo [E,H,M]
//   moe.shared.wi_0, moe.shared.wi_1, moe.shared.wo  moe.shared.gate [M,1]
// and for a prediction layer, whose number follows those of the layers, also
//   prediction.token_norm, prediction.hidden_norm [M]  prediction.projection [2M,M]
//   prediction.final_norm [M]
// A hub matrix is [out, in] with merged heads; ours is [in, out] with heads as a separate dim.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "core/box.h"
#include "core/tensor.h"
#include "models/families/family.h"

namespace switchyard {

// The hub tensors that make up one parameter, in order: one, or for a stack of experts E of them.
struct HubTensors {
  std::vector<std::string> names;
  bool transposed = false;  // the hub has [out, in], we have [in, out...]
  Shape shape;              // of each hub tensor
};

// `our_name` must be one of the names above (CHECKed); `our_shape` gives the number of experts.
HubTensors hub_tensors(const ModelFamily& family, const std::string& our_name, const Shape& our_shape);
// The shape of each of the parameter's hub tensors.
Shape hub_shape(const ModelFamily& family, const std::string& our_name, const Shape& our_shape);
// Hub -> ours. f32 and bf16 stay (all of one dtype; gate_bias f32 as in the file). Shapes are CHECKed.
Tensor to_ours(const HubTensors& tensors, std::span<const Tensor> hub, const Shape& our_shape);
// Ours -> hub; the exact inverse of to_ours().
std::vector<Tensor> to_hub(const HubTensors& tensors, const Tensor& ours);

// Reads one parameter from a folder. Error(usage) that names a missing or mis-shaped tensor.
Tensor load_from_hub(const HubWeights& folder, const ModelFamily& family, const std::string& our_name,
                     const Shape& our_shape);

// Reads a box of one parameter in another dtype, times a factor: cast, scaled in float32, rounded again.
// Reads only the box's experts and rows, a few MiB at a time, and releases their pages. Errors as above.
struct HubCast {
  DType dtype = DType::f32;  // or bf16
  float factor = 1;
};
Tensor hub_block(const HubWeights& folder, const ModelFamily& family, const std::string& our_name,
                 const Shape& our_shape, const Box& box, const HubCast& cast);

// The packed type that holds the whole parameter bit for bit as the folder stores it
// (HubWeights::packed_dtype). None where no packed type does, or where the parameter's tensors differ in it.
std::optional<DType> packed_in_hub(const HubWeights& folder, const ModelFamily& family,
                                   const std::string& our_name, const Shape& our_shape);
// Reads blocks of the packed type that the folder stores (CHECKed): the part `box` of [.., in / 32, out /
// 16], whose whole is `packed_shape`. For a stack only the experts in the box are read.
Tensor load_blocks_from_hub(const HubWeights& folder, const ModelFamily& family, const std::string& our_name,
                            const Shape& our_shape, const Shape& packed_shape, const Box& box);

// A notice that begins with the tensor's name and says why the tensor is skipped on purpose; nothing for
// other tensors. Skipped are prediction layers that the model does not have (numbered after the `num_layers`
// layers), their copies of embedding and head, stored rotary frequencies, the parts of models that see
// images, and an lm_head stored beside tied embeddings.
std::optional<std::string> hub_left_out(const std::string& name, bool tied, std::int64_t num_layers);

// The tensors that each prediction layer of a published model stores again, below "model.layers.<i>.".
inline constexpr std::string_view kPredictionEmbedding = "embed_tokens.weight",
                                  kPredictionHead = "shared_head.head.weight";

// Checks the whole set of tensors before any is read: each tensor that
// `our_parameters` (name -> shape) need exists with the right shape, and no others
// exist. Error(usage) lists up to five of the missing, mis-shaped and surplus names.
// Returns notices of the skipped tensors: those of hub_left_out() (one for all
// tensors of prediction layers together), and those of tensors without elements.
std::vector<std::string> check_hub_tensors(const HubWeights& folder, const ModelFamily& family,
                                           const std::map<std::string, Shape>& our_parameters,
                                           std::int64_t num_layers);

}  // namespace switchyard
