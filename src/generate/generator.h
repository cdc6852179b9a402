// Generator: a model that goes on from tokens, one call after another, on one rank of a session. What it
// returns is the same on every rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/decoder.h"

namespace switchyard {

class Generator {
 public:
  // Of rows that get `capacity` tokens at most. The context and the parameters must outlive it.
  Generator(Context& context, const ModelConfig& model, const Parameters& parameters, std::int64_t capacity);

  // Feeds each row its tokens, at least one, after those it was fed before; the number of rows is that of the
  // first call. Logits of every row's next token, f32 [rows,V]. CHECKs that no row gets more than the
  // capacity.
  Tensor feed(std::span<const std::vector<std::int32_t>> rows);

  std::int64_t length(std::size_t row) const { return lengths_[row]; }

 private:
  Batch batch_of(std::span<const std::vector<std::int32_t>> rows) const;

  Context& context_;
  ModelConfig model_;
  const Parameters& parameters_;
  std::int64_t capacity_;
  std::vector<AttentionCache> caches_;  // of the layers
  std::vector<std::int64_t> lengths_;   // of the rows
};

}  // namespace switchyard
