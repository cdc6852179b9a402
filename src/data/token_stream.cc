#include "data/token_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "data/packing.h"
#include "data/shuffle.h"

namespace switchyard {
namespace {

class InOrder : public RowOrder {
 public:
  std::int64_t row(std::int64_t, std::int64_t place) override { return place; }
};

class StoredShuffle : public RowOrder {
 public:
  StoredShuffle(RngKey key, std::int64_t rows) : key_(key), rows_(rows) {}
  std::int64_t row(std::int64_t epoch, std::int64_t place) override {
    const std::lock_guard lock(mutex_);
    Epoch& order = epochs_[epoch % 2];  // a batch may lie across the end of an epoch
    if (order.number != epoch)
      order = {epoch, rng_permutation(rng_fold_in(key_, static_cast<std::uint32_t>(epoch)), rows_)};
    return order.rows[static_cast<std::size_t>(place)];
  }

 private:
  struct Epoch {
    std::int64_t number = -1;
    std::vector<std::int32_t> rows;
  };
  RngKey key_;
  std::int64_t rows_;
  std::mutex mutex_;
  Epoch epochs_[2];
};

class ComputedShuffle : public RowOrder {
 public:
  ComputedShuffle(RngKey key, std::int64_t rows) : key_(key), rows_(rows) {}
  std::int64_t row(std::int64_t epoch, std::int64_t place) override {
    return Permutation(rng_fold_in(key_, static_cast<std::uint32_t>(epoch)), rows_)(place);
  }

 private:
  RngKey key_;
  std::int64_t rows_;
};

class Packed : public Dataset {
 public:
  Packed(std::shared_ptr<const TokenStream> stream, std::int64_t sequence, std::unique_ptr<RowOrder> order)
      : stream_(std::move(stream)), sequence_(sequence), order_(std::move(order)) {
    rows_ = order_ ? training_rows(*stream_, sequence) : held_out_rows(*stream_, sequence);
  }

  std::int64_t rows() const override { return rows_; }
  std::string description() const override {
    return fmt::format("{} documents, {} tokens, {} rows of {}", stream_->documents(), stream_->tokens(),
                       rows_, sequence_);
  }

  Batch read(std::int64_t first_row, std::int64_t rows) override {
    CHECK(first_row >= 0 && rows >= 0, "rows {} from {}", rows, first_row);
    Batch out = empty_batch(rows, sequence_);
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> starts;
    for (std::int64_t b = 0; b < rows; ++b) {
      const std::int64_t position = first_row + b;
      if (!order_ && position >= rows_) break;
      const std::int64_t row = order_ ? order_->row(position / rows_, position % rows_) : position;
      const std::int64_t begin = row * sequence_;
      stream_->read(begin, std::min(begin + sequence_ + 1, stream_->tokens()), tokens, starts);
      pack_row(tokens, starts, b, out);
    }
    return out;
  }

 private:
  std::shared_ptr<const TokenStream> stream_;
  std::int64_t sequence_, rows_ = 0;
  std::unique_ptr<RowOrder> order_;  // null: held out
};

}  // namespace

void StoredTokens::add_document(const std::vector<std::int32_t>& tokens) {
  if (tokens.empty()) return;
  starts_.push_back(static_cast<std::int64_t>(tokens_.size()));
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

void StoredTokens::read(std::int64_t begin, std::int64_t end, std::vector<std::int32_t>& tokens,
                        std::vector<std::int64_t>& starts) const {
  tokens.assign(tokens_.begin() + begin, tokens_.begin() + end);
  starts.clear();
  for (auto start = std::upper_bound(starts_.begin(), starts_.end(), begin);
       start != starts_.end() && *start < end; ++start)
    starts.push_back(*start - begin);
}

std::unique_ptr<RowOrder> rows_in_order() {
  return std::make_unique<InOrder>();
}
std::unique_ptr<RowOrder> stored_shuffle(RngKey key, std::int64_t rows) {
  return std::make_unique<StoredShuffle>(key, rows);
}
std::unique_ptr<RowOrder> computed_shuffle(RngKey key, std::int64_t rows) {
  return std::make_unique<ComputedShuffle>(key, rows);
}

std::int64_t training_rows(const TokenStream& stream, std::int64_t sequence) {
  return std::max<std::int64_t>(0, stream.tokens() - 1) / sequence;
}
std::int64_t held_out_rows(const TokenStream& stream, std::int64_t sequence) {
  return (std::max<std::int64_t>(0, stream.tokens() - 1) + sequence - 1) / sequence;
}

std::unique_ptr<Dataset> make_packed(std::shared_ptr<const TokenStream> stream, std::int64_t sequence,
                                     std::unique_ptr<RowOrder> order) {
  return std::make_unique<Packed>(std::move(stream), sequence, std::move(order));
}

}  // namespace switchyard
