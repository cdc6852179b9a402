// RoutingBlocks: the experts that one rank's router chose, until they are put together with those of all
// other ranks.
#pragma once

#include <functional>
#include <vector>

#include "autograd/context.h"
#include "moe/moe.h"
#include "routing/routing_file.h"

namespace switchyard {

struct ModelConfig;

// Of the layers of the model proper; no layers for a dense model.
RoutedLayers routed_layers(const ModelConfig& model);

class RoutingBlocks {
 public:
  explicit RoutingBlocks(RoutedLayers routed) : routed_(std::move(routed)) {}

  const RoutedLayers& routed() const { return routed_; }
  // Keeps a copy of this rank's block of ids i32 [B,S,K], whose row 0 is `first_row` of what gather() makes.
  // Layers of no record, and ranks that only repeat others' tokens, keep nothing.
  void add(Context& context, std::int64_t layer, std::int64_t first_row, const Array& ids);
  // All ranks' blocks: the experts of `rows` rows of `length` tokens, u16 [L,rows,length,K], on rank 0 of the
  // run, nothing on the others. Every token of every layer was added on one rank, or its experts are 0.
  // Forgets the blocks. Collective, on the ranks of all stages.
  std::vector<std::uint16_t> gather(Context& context, std::int64_t rows, std::int64_t length);

 private:
  struct Block {
    std::size_t layer;  // place in routed_.layers
    std::int64_t row, column;
    Tensor ids;
  };
  RoutedLayers routed_;
  std::vector<Block> blocks_;
};

}  // namespace switchyard
