#include "data/token_stream.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "core/rng.h"
#include "data/packing.h"
#include "data/row_layout.h"
#include "data/shuffle.h"

namespace switchyard {
namespace {

// The order of an epoch's rows.
class RowOrder {
 public:
  virtual ~RowOrder() = default;
  virtual std::int64_t row(std::int64_t epoch, std::int64_t place) = 0;
};

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

std::unique_ptr<RowOrder> make_order(const PackingOptions& packing, ShuffleKind kind, std::int64_t rows) {
  if (!packing.shuffle) return std::make_unique<InOrder>();
  const RngKey key = rng_fold_in(rng_key(packing.seed), "data order");
  if (kind == ShuffleKind::drawn) return std::make_unique<StoredShuffle>(key, rows);
  return std::make_unique<ComputedShuffle>(key, rows);
}

class Rows : public Dataset {
 public:
  Rows(std::shared_ptr<const DocumentStream> stream, std::unique_ptr<RowLayout> layout, std::int64_t sequence,
       std::unique_ptr<RowOrder> order)
      : stream_(std::move(stream)),
        layout_(std::move(layout)),
        sequence_(sequence),
        rows_(layout_->rows()),
        order_(std::move(order)) {}

  std::int64_t rows() const override { return rows_; }
  std::string description() const override {
    return fmt::format("{} documents, {} tokens, {} rows of {}", stream_->documents(), stream_->tokens(),
                       rows_, sequence_);
  }

  std::uint64_t fingerprint() const override { return stream_->fingerprint(); }

  Batch read(std::int64_t first_row, std::int64_t rows) override {
    CHECK(first_row >= 0 && rows >= 0, "rows {} from {}", rows, first_row);
    Batch out = empty_batch(rows, sequence_);
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> starts;
    std::vector<std::uint8_t> counts;
    for (std::int64_t b = 0; b < rows; ++b) {
      const std::int64_t position = first_row + b;
      if (!order_ && position >= rows_) break;
      const RowRange row = layout_->row(order_ ? order_->row(position / rows_, position % rows_) : position);
      stream_->read(row.begin, row.end, tokens, starts);
      stream_->read_counts(row.begin, row.end, counts);
      pack_row(tokens, row.inputs, starts, b, out, counts);
    }
    return out;
  }

 private:
  std::shared_ptr<const DocumentStream> stream_;
  std::unique_ptr<RowLayout> layout_;
  std::int64_t sequence_, rows_;
  std::unique_ptr<RowOrder> order_;  // null: held out
};

void require_one_batch(const std::string& path, const DocumentStream& stream, const PackingOptions& packing,
                       std::int64_t rows) {
  if (rows >= packing.batch) return;
  if (packing.pack && packing.most_documents < 0) {
    fail_usage(
        "[data] data_path={}: {} training tokens, expected at least {} for one batch of {} rows of {}; give "
        "more text or a smaller batch",
        path, stream.tokens(), packing.batch * packing.sequence + 1, packing.batch, packing.sequence);
  }
  fail_usage(
      "[data] data_path={}: {} documents to train on make {} rows, expected at least {} for one batch; give "
      "more "
      "text or a smaller batch",
      path, stream.documents(), rows, packing.batch);
}

}  // namespace

void StoredTokens::add_document(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> counts) {
  if (tokens.empty()) return;
  const bool counted = starts_.empty() ? !counts.empty() : !counts_.empty();
  CHECK(counts.size() == (counted ? tokens.size() : 0), "{} counts for {} tokens", counts.size(),
        tokens.size());
  for (const std::uint8_t count : counts) counts_.push_back(count != 0);
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

void StoredTokens::read_counts(std::int64_t begin, std::int64_t end,
                               std::vector<std::uint8_t>& counts) const {
  counts.clear();
  if (!counts_.empty()) counts.assign(counts_.begin() + begin, counts_.begin() + end);
}

std::uint64_t StoredTokens::fingerprint() const {
  const std::uint64_t hash =
      XXH3_64bits_withSeed(tokens_.data(), tokens_.size() * sizeof(tokens_[0]),
                           XXH3_64bits(starts_.data(), starts_.size() * sizeof(starts_[0])));
  if (counts_.empty()) return hash;
  const std::vector<std::uint8_t> counts(counts_.begin(), counts_.end());
  return XXH3_64bits_withSeed(counts.data(), counts.size(), hash);
}

std::optional<OutsideToken> first_outside(const DocumentStream& stream, std::int64_t vocabulary) {
  constexpr std::int64_t kPiece = 1 << 20;
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> starts;
  for (std::int64_t begin = 0; begin < stream.tokens(); begin += kPiece) {
    stream.read(begin, std::min(begin + kPiece, stream.tokens()), tokens, starts);
    const auto found = std::ranges::find_if(tokens, [&](std::int32_t id) { return id >= vocabulary; });
    if (found == tokens.end()) continue;
    const std::int64_t place = begin + (found - tokens.begin());
    std::int64_t low = 0, high = stream.documents();  // the document begins at or before `place`
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (stream.document(middle).begin <= place ? low : high) = middle;
    }
    return OutsideToken{*found, low};
  }
  return {};
}

std::unique_ptr<Dataset> make_training_rows(std::shared_ptr<const DocumentStream> stream,
                                            const PackingOptions& packing, ShuffleKind kind,
                                            const std::string& path) {
  CHECK(packing.batch >= 1 && packing.sequence >= 1, "batch {} sequence {}", packing.batch, packing.sequence);
  auto layout = make_row_layout(*stream, packing, DataSide::train);
  require_one_batch(path, *stream, packing, layout->rows());
  return make_training_rows(std::move(stream), std::move(layout), packing, kind);
}

std::unique_ptr<Dataset> make_training_rows(std::shared_ptr<const DocumentStream> stream,
                                            std::unique_ptr<RowLayout> layout, const PackingOptions& packing,
                                            ShuffleKind kind) {
  auto order = make_order(packing, kind, layout->rows());
  return std::make_unique<Rows>(std::move(stream), std::move(layout), packing.sequence, std::move(order));
}

std::unique_ptr<Dataset> make_held_out_rows(std::shared_ptr<const DocumentStream> stream,
                                            const PackingOptions& packing) {
  auto layout = make_row_layout(*stream, packing, DataSide::held_out);
  return make_held_out_rows(std::move(stream), std::move(layout), packing);
}

std::unique_ptr<Dataset> make_held_out_rows(std::shared_ptr<const DocumentStream> stream,
                                            std::unique_ptr<RowLayout> layout,
                                            const PackingOptions& packing) {
  return std::make_unique<Rows>(std::move(stream), std::move(layout), packing.sequence, nullptr);
}

}  // namespace switchyard
