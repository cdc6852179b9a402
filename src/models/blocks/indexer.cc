#include "models/blocks/indexer.h"

#include <cmath>
#include <optional>

#include "moe/routing_tape.h"
#include "ops/basic.h"
#include "ops/einsum.h"
#include "ops/norm.h"

namespace switchyard {
namespace {

// Epsilon of the norm of the indexer's keys; every published model has this one.
constexpr float kKeyEpsilon = 1e-6f;

Array parameter(const LayerCall& call, const char* name) {
  return call.parameter(std::string("attention.indexer.") + name);
}

// x less its mean, over its deviation: a layer norm in float32 whatever the activations' type, as the order
// of nearly equal scores hangs on it.
Array layer_norm(Context& c, const Array& x, const Array& factor, const Array& bias) {
  const Array centred = subtract_mean(c, cast(c, x, DType::f32));
  return add_bias(c, rms_norm(c, centred, factor, kKeyEpsilon), bias);
}

// Takes the keys of the tape, and tells it how far the indexer is from them.
Array keys_of_tape(const LayerCall& call, const IndexVectors& index, const Tensor& replayed) {
  const Tensor ties(DType::f32, {replayed.dim(0), replayed.dim(1), 2});
  const Array chosen =
      replayed_keys(call.context, index, call.segments, call.attention().indexer_topk, replayed, ties);
  call.model.moe_execution.tape->record_keys(call.context, layer_of(call.prefix), index.q.info(), ties);
  return chosen;
}

}  // namespace

bool indexer_learns(const LayerCall& call) {
  return call.indexer_loss != nullptr && call.model.indexer_loss > 0;
}

IndexVectors index_vectors(const LayerCall& call, const Array& x, const Array& query_latents) {
  Context& c = call.context;
  const AttentionKind& kind = call.attention();
  std::optional<NoGrad> no_grad;
  const bool learns = indexer_learns(call);
  if (!learns) no_grad.emplace(c);
  const Array from = learns ? detach(c, x) : x, latents = learns ? detach(c, query_latents) : query_latents;
  const Sharding tokens{{from.sharding().dims[0], from.sharding().dims[1], {}}, {}};
  const Sharding heads{{tokens.dims[0], tokens.dims[1], {}, {}}, {}};
  IndexVectors index;
  index.factor =
      static_cast<float>(1 / std::sqrt(static_cast<double>(kind.indexer_heads * kind.indexer_dim)));
  const Array q = einsum(c, "BSR,RND->BSND", latents, weight(call, "attention.indexer.wq_b"), &heads);
  index.q = rope(c, q, call.rope, 0, kind.indexer_interleaved);
  const Array k = einsum(c, "BSM,MD->BSD", from, weight(call, "attention.indexer.wk"), &tokens);
  const Array normed = layer_norm(c, k, parameter(call, "k_norm"), parameter(call, "k_norm_bias"));
  index.k = cast(c, rope(c, normed, call.rope, 0, kind.indexer_interleaved), call.model.dtype);
  index.weights = einsum(c, "BSM,MN->BSN", cast(c, from, DType::f32),
                         cast(c, parameter(call, "weights"), DType::f32), &tokens);
  return index;
}

IndexChoice choose_keys_of(const LayerCall& call, const IndexVectors& index) {
  Context& c = call.context;
  const std::int64_t count = call.attention().indexer_topk;
  if (index.k.shape()[1] <= count) return {};
  IndexChoice choice;
  if (indexer_learns(call)) {
    choice.scores = index_scores(c, index, call.segments);
    choice.chosen = chosen_of_scores(c, choice.scores, count);
  }
  const auto& tape = call.model.moe_execution.tape;
  const Tensor replayed = tape ? tape->replay_keys(c, layer_of(call.prefix), index.q.info()) : Tensor();
  if (replayed.defined())
    choice.chosen = keys_of_tape(call, index, replayed);
  else if (!choice.chosen.defined())
    choice.chosen = chosen_keys(c, index, call.segments, count);
  if (call.chosen_keys != nullptr) *call.chosen_keys = choice.chosen;
  return choice;
}

}  // namespace switchyard
