// Tokenised documents one after another, and rows cut from them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/rng.h"
#include "data/dataset.h"

namespace switchyard {

// Immutable, usable from several threads.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  virtual std::int64_t tokens() const = 0;
  virtual std::int64_t documents() const = 0;
  // Replaces `tokens` by those of [begin, end), and `starts` by the places among them, from 1 on, where a
  // document begins, ascending.
  virtual void read(std::int64_t begin, std::int64_t end, std::vector<std::int32_t>& tokens,
                    std::vector<std::int64_t>& starts) const = 0;
};

// All of it in memory.
class StoredTokens : public TokenStream {
 public:
  // A document without tokens is none.
  void add_document(const std::vector<std::int32_t>& tokens);
  std::int64_t tokens() const override { return static_cast<std::int64_t>(tokens_.size()); }
  std::int64_t documents() const override { return static_cast<std::int64_t>(starts_.size()); }
  void read(std::int64_t begin, std::int64_t end, std::vector<std::int32_t>& tokens,
            std::vector<std::int64_t>& starts) const override;

 private:
  std::vector<std::int32_t> tokens_;
  std::vector<std::int64_t> starts_;
};

// The order that rows of an epoch come in.
class RowOrder {
 public:
  virtual ~RowOrder() = default;
  virtual std::int64_t row(std::int64_t epoch, std::int64_t place) = 0;
};

std::unique_ptr<RowOrder> rows_in_order();
// Drawn anew each epoch and held in memory, four bytes a row of two epochs; computed on the fly.
std::unique_ptr<RowOrder> stored_shuffle(RngKey key, std::int64_t rows);
std::unique_ptr<RowOrder> computed_shuffle(RngKey key, std::int64_t rows);

// Rows that `stream` gives: training needs one token beyond a row's inputs and drops the last incomplete row,
// held-out data keeps it.
std::int64_t training_rows(const TokenStream& stream, std::int64_t sequence);
std::int64_t held_out_rows(const TokenStream& stream, std::int64_t sequence);

// Training data when there is an `order`; else held-out data, padded at the end.
std::unique_ptr<Dataset> make_packed(std::shared_ptr<const TokenStream> stream, std::int64_t sequence,
                                     std::unique_ptr<RowOrder> order);

}  // namespace switchyard
