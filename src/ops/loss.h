#pragma once

#include "autograd/op.h"

namespace switchyard {

struct CrossEntropyOptions {
  double count = 1;  // targets in the whole batch: sums are divided by it
  // [] f64: replaces `count`. For a step that runs again as a graph (core/graph.h) with another count there.
  Tensor count_there = {};
  double z_loss_multiplier = 0;
  float logit_soft_cap = 0;
  Array weights = {};  // f32 [B,S]: factors of the tokens' losses; undefined: each is 1
};

struct CrossEntropy {
  Array loss;    // [] f32: (weighted sum of cross entropies + z loss) / count, whole on every rank
  Array z_loss;  // [] f32: the z loss part of `loss`, for the log
};

// Output projection and softmax cross-entropy (natural log) without ever holding [tokens, vocab]:
// hidden [B,S,M], head [M,V] or, when `head_vocab_major`, [V,M]; targets i32 [B,S]; a token counts when its
// segment (i32 [B,S]) is not 0. z loss is multiplier * lse² per token. The vocabulary may be split.
CrossEntropy linear_cross_entropy(Context& context, const Array& hidden, const Array& head,
                                  bool head_vocab_major, const Array& targets, const Array& segments,
                                  const CrossEntropyOptions& options);

// The natural log of each target's probability, f32 [B,S], with a gradient; 0 where the segment is 0. Inputs
// as of linear_cross_entropy, beside which this one makes logits twice: it is for losses that weigh each
// token by itself. The result is laid out as the tokens are while they meet the head.
Array token_log_probs(Context& context, const Array& hidden, const Array& head, bool head_vocab_major,
                      const Array& targets, const Array& segments, float logit_soft_cap = 0);

// cap * tanh(logits / cap) for float32 logits, as in linear_cross_entropy. cap > 0.
Array capped_logits(Context& context, const Array& logits, float cap);

}  // namespace switchyard
