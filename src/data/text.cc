#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "data/dataset.h"
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
    stream.starts.push_back(static_cast<std::int64_t>(stream.tokens.size()));
    if (const auto bos = tokenizer.bos()) stream.tokens.push_back(*bos);
    const auto ids = tokenizer.encode(text);
    stream.tokens.insert(stream.tokens.end(), ids.begin(), ids.end());
    if (const auto eos = tokenizer.eos()) stream.tokens.push_back(*eos);
  }
  return stream;
}

class PackedText : public Dataset {
 public:
  // `key`: the order of the rows is drawn anew from it every epoch; without it rows keep their order.
  PackedText(TokenStream stream, std::int64_t batch, std::int64_t sequence, const RngKey* key)
      : stream_(std::move(stream)), batch_(batch), sequence_(sequence), shuffled_(key != nullptr) {
    if (shuffled_) key_ = *key;
    // Every row needs one token beyond its inputs; the held-out side pads, the training side drops the rest.
    const auto last = static_cast<std::int64_t>(stream_.tokens.size()) - 1;
    rows_ = shuffled_ ? last / sequence : (last + sequence - 1) / sequence;
    batches_ = shuffled_ ? rows_ / batch : (rows_ + batch - 1) / batch;
  }

  std::int64_t batches() const override { return batches_; }
  std::string description() const override {
    return fmt::format("{} documents, {} tokens, {} batches of {} rows of {}", stream_.starts.size(),
                       stream_.tokens.size(), batches_, batch_, sequence_);
  }

  Batch next(std::int64_t step) override {
    CHECK(step >= 0, "step {}", step);
    Batch out;
    for (Tensor* t : {&out.inputs, &out.targets, &out.inputs_position, &out.inputs_segmentation,
                      &out.targets_segmentation}) {
      *t = Tensor::zeros(DType::i32, {batch_, sequence_});
    }
    const std::lock_guard lock(mutex_);
    for (std::int64_t b = 0; b < batch_; ++b) {
      const std::int64_t place = step % batches_ * batch_ + b;
      if (place < rows_) fill_row(row_at(step / batches_, place), b, out);
    }
    return out;
  }

 private:
  std::int64_t row_at(std::int64_t epoch, std::int64_t place) {
    if (!shuffled_) return place;
    if (epoch != epoch_) {
      order_ = rng_permutation(rng_fold_in(key_, static_cast<std::uint32_t>(epoch)), rows_);
      epoch_ = epoch;
    }
    return order_[static_cast<std::size_t>(place)];
  }

  void fill_row(std::int64_t row, std::int64_t b, Batch& out) const {
    const std::int64_t begin = row * sequence_;
    const auto end = std::min(begin + sequence_, static_cast<std::int64_t>(stream_.tokens.size()) - 1);
    const auto at = [&](Tensor& t) { return t.data<std::int32_t>() + b * sequence_; };
    // The first document that starts after `begin`; the row begins inside the one before it.
    auto next_start = std::upper_bound(stream_.starts.begin(), stream_.starts.end(), begin);
    std::int32_t segment = 1, position = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t s = i - begin;
      while (next_start != stream_.starts.end() && *next_start <= i) {
        if (*next_start == i) ++segment, position = 0;
        ++next_start;
      }
      const bool last_of_document = next_start != stream_.starts.end() && *next_start == i + 1;
      at(out.inputs)[s] = stream_.tokens[static_cast<std::size_t>(i)];
      at(out.inputs_position)[s] = position++;
      at(out.inputs_segmentation)[s] = segment;
      if (last_of_document) continue;  // no target: it would be the first token of another text
      at(out.targets)[s] = stream_.tokens[static_cast<std::size_t>(i) + 1];
      at(out.targets_segmentation)[s] = segment;
    }
  }

  TokenStream stream_;
  std::int64_t batch_, sequence_, rows_ = 0, batches_ = 0;
  bool shuffled_;
  RngKey key_;
  std::mutex mutex_;  // guards the order of the current epoch
  std::int64_t epoch_ = -1;
  std::vector<std::int32_t> order_;
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
  data.train = std::make_unique<PackedText>(std::move(train), batch, sequence, &key);
  if (eval_fraction > 0) {
    TokenStream eval = tokenize(split.eval, tokenizer);
    if (eval.tokens.size() < 2)
      fail_usage("[data] data_path={}: the held-out text has no two tokens; give more text", paths);
    data.eval = std::make_unique<PackedText>(std::move(eval), batch, sequence, nullptr);
  }
  return data;
}

}  // namespace switchyard
