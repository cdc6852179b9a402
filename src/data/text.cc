#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "data/dataset.h"
#include "data/packing.h"
#include "data/text_files.h"

namespace switchyard {
namespace {

// All documents of one side, one after another.
struct TokenStream {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> starts;  // of each document in tokens, ascending
};

TokenStream tokenize(const std::vector<std::string>& documents, const Tokenizer& tokenizer) {
  TokenStream stream;
  for (const std::string& text : documents) {
    const std::size_t start = stream.tokens.size();
    if (const auto bos = tokenizer.bos()) stream.tokens.push_back(*bos);
    const auto ids = tokenizer.encode(text);
    stream.tokens.insert(stream.tokens.end(), ids.begin(), ids.end());
    if (const auto eos = tokenizer.eos()) stream.tokens.push_back(*eos);
    if (stream.tokens.size() > start) stream.starts.push_back(static_cast<std::int64_t>(start));
  }
  return stream;
}

class PackedText : public Dataset {
 public:
  // `key`: the order of the rows is drawn anew from it every epoch; without it rows keep their order.
  PackedText(TokenStream stream, std::int64_t sequence, const RngKey* key)
      : stream_(std::move(stream)), sequence_(sequence), shuffled_(key != nullptr) {
    if (shuffled_) key_ = *key;
    // Every row needs one token beyond its inputs; the held-out side pads, the training side drops the rest.
    const auto last = static_cast<std::int64_t>(stream_.tokens.size()) - 1;
    rows_ = shuffled_ ? last / sequence : (last + sequence - 1) / sequence;
  }

  std::int64_t rows() const override { return rows_; }
  std::string description() const override {
    return fmt::format("{} documents, {} tokens, {} rows of {}", stream_.starts.size(), stream_.tokens.size(),
                       rows_, sequence_);
  }

  Batch read(std::int64_t first_row, std::int64_t rows) override {
    CHECK(first_row >= 0 && rows >= 0, "rows {} from {}", rows, first_row);
    Batch out = empty_batch(rows, sequence_);
    const std::lock_guard lock(mutex_);
    for (std::int64_t b = 0; b < rows; ++b) {
      const std::int64_t position = first_row + b;
      if (shuffled_ || position < rows_) fill_row(row_at(position), b, out);
    }
    return out;
  }

 private:
  std::int64_t row_at(std::int64_t position) {
    if (!shuffled_) return position;
    const std::int64_t epoch = position / rows_;
    Order& order = orders_[epoch % 2];  // a batch may lie across the end of an epoch
    if (order.epoch != epoch) {
      order = {epoch, rng_permutation(rng_fold_in(key_, static_cast<std::uint32_t>(epoch)), rows_)};
    }
    return order.rows[static_cast<std::size_t>(position % rows_)];
  }

  void fill_row(std::int64_t row, std::int64_t b, Batch& out) const {
    const std::int64_t begin = row * sequence_;
    const auto end = std::min(begin + sequence_ + 1, static_cast<std::int64_t>(stream_.tokens.size()));
    const auto first = std::upper_bound(stream_.starts.begin(), stream_.starts.end(), begin);
    std::vector<std::int64_t> starts;
    for (auto start = first; start != stream_.starts.end() && *start < end; ++start)
      starts.push_back(*start - begin);
    pack_row(std::span(stream_.tokens)
                 .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
             starts, b, out);
  }

  struct Order {
    std::int64_t epoch = -1;
    std::vector<std::int32_t> rows;
  };
  TokenStream stream_;
  std::int64_t sequence_, rows_ = 0;
  bool shuffled_;
  RngKey key_;
  std::mutex mutex_;  // guards orders_
  Order orders_[2];
};

}  // namespace

TextData make_text(const std::string& paths, const Tokenizer& tokenizer, std::int64_t batch,
                   std::int64_t sequence, std::uint32_t seed, double eval_fraction) {
  CHECK(batch >= 1 && sequence >= 1, "batch {} sequence {}", batch, sequence);
  if (!(eval_fraction >= 0 && eval_fraction < 1))
    fail_usage("[data] eval fraction {}: expected 0 <= it < 1", eval_fraction);
  const std::vector<std::string> files = find_text_files(paths);
  if (files.empty())
    fail_usage("[data] data_path={}: expected files with text, found none (hidden ones do not count)", paths);
  const SplitText split = split_text(files, eval_fraction);
  TokenStream train = tokenize(split.train, tokenizer);
  const auto tokens = static_cast<std::int64_t>(train.tokens.size());
  if (tokens <= batch * sequence) {
    fail_usage(
        "[data] data_path={}: {} training tokens, expected at least {} for one batch of {} rows of {}; give "
        "more text "
        "or a smaller batch",
        paths, tokens, batch * sequence + 1, batch, sequence);
  }
  const RngKey key = rng_fold_in(rng_key(seed), "data order");
  TextData data;
  data.train = std::make_unique<PackedText>(std::move(train), sequence, &key);
  if (eval_fraction > 0) {
    TokenStream eval = tokenize(split.eval, tokenizer);
    if (eval.tokens.size() < 2)
      fail_usage("[data] data_path={}: the held-out text has no two tokens; give more text", paths);
    data.eval = std::make_unique<PackedText>(std::move(eval), sequence, nullptr);
  }
  return data;
}

}  // namespace switchyard
