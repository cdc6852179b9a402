// RoutingBlocks: collects the experts that one rank's router
// chose, and combines them with the blocks of all other ranks.
#pragma once

#include <functional>
#include <vector>

#include "autograd/context.h"
#include "moe/moe.h"
#include "routing/routing_file.h"

namespace switchyard {

struct ModelConfig;

// The MoE layers of the model without prediction layers; no layers for a dense model.
RoutedLayers routed_layers(const ModelConfig& model);

class RoutingBlocks {
 public:
  explicit RoutingBlocks(RoutedLayers routed) : routed_(std::move(routed)) {}

  const RoutedLayers& routed() const { return routed_; }
  // Keeps a copy of this rank's block of ids i32 [B,S,K], whose row 0 is row `first_row` of gather()'s
  // result. Keeps nothing for layers without a record, and on ranks that only repeat others' tokens.
  void add(Context& context, std::int64_t layer, std::int64_t first_row, const Array& ids);
  // Combines all ranks' blocks: the experts of `rows` rows of `length` tokens, u16 [L,rows,length,K], on rank
  // 0 of the run, nothing on the others. A token of a layer that no rank added has experts 0. Clears the
  // blocks. Collective, over the ranks of all stages.
  std::vector<std::uint16_t> gather(Context& context, std::int64_t rows, std::int64_t length);

 private:
  struct Block {
    std::size_t layer;  // index in routed_.layers
    std::int64_t row, column;
    Tensor ids;
  };
  RoutedLayers routed_;
  std::vector<Block> blocks_;
};

}  // namespace switchyard
