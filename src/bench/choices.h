// Generates choices of experts with a wanted load, in place of a router's.
#pragma once

#include <vector>

#include "bench/moe_shapes.h"
#include "moe/routing_tape.h"

namespace switchyard::bench {

// i32 [1, tokens, topk]: distinct experts for each token. balanced: all experts equally often, in a random
// order of tokens and experts; each `round` goes on where the last ended, so few tokens change experts. zipf:
// drawn in proportion to 1/rank of the expert. one_hot: every token gets the same topk experts.
Tensor choices(const MoeShape& shape, const std::string& skew, std::int64_t round);

// Hands out choices by step, cyclically.
class FixedChoices : public RoutingTape {
 public:
  explicit FixedChoices(std::vector<Tensor> choices) : choices_(std::move(choices)) {}
  Tensor replay(const Context& context, std::int64_t step, std::int64_t layer, std::int64_t first_row,
                const ArrayInfo& logits) override;
  void record(Context&, std::int64_t, std::int64_t, std::int64_t, const Array&, const Array&,
              const Routing&) override {}
  double mean_experts_used() const;  // per step

 private:
  std::vector<Tensor> choices_;
};

}  // namespace switchyard::bench
