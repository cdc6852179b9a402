#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/rng.h"
#include "data/dataset.h"
#include "data/packing.h"

namespace switchyard {
namespace {

class Synthetic : public Dataset {
 public:
  Synthetic(std::int64_t batch, std::int64_t sequence, std::int64_t vocab)
      : batch_(batch), sequence_(sequence), vocab_(vocab) {
    tokens_.reserve(static_cast<std::size_t>(batch * (sequence + 1)));
    for (std::int64_t i = 0; i < batch * (sequence + 1); ++i) {
      tokens_.push_back(
          rng_randint(rng_key(0), static_cast<std::uint64_t>(i), 0, static_cast<std::int32_t>(vocab)));
    }
  }

  Batch read(std::int64_t first_row, std::int64_t rows) override {
    CHECK(first_row >= 0 && rows >= 0, "rows {} from {}", rows, first_row);
    Batch out = empty_batch(rows, sequence_);
    for (std::int64_t b = 0; b < rows; ++b) {
      const std::int32_t* tokens = tokens_.data() + (first_row + b) % batch_ * (sequence_ + 1);
      const auto row = [&](Tensor& t) { return t.data<std::int32_t>() + b * sequence_; };
      std::copy_n(tokens, sequence_, row(out.inputs));
      std::copy_n(tokens + 1, sequence_, row(out.targets));
      std::iota(row(out.inputs_position), row(out.inputs_position) + sequence_, 0);
      std::fill_n(row(out.inputs_segmentation), sequence_, 1);
      std::fill_n(row(out.targets_segmentation), sequence_, 1);
    }
    return out;
  }
  std::int64_t rows() const override { return batch_; }
  std::string description() const override {
    return fmt::format("synthetic: one batch of {} uniform random tokens below {}",
                       to_string(Shape{batch_, sequence_}), vocab_);
  }

 private:
  std::int64_t batch_, sequence_, vocab_;
  std::vector<std::int32_t> tokens_;  // [batch, sequence + 1]
};

}  // namespace

std::unique_ptr<Dataset> make_synthetic(std::int64_t batch, std::int64_t sequence, std::int64_t vocab) {
  CHECK(batch >= 1 && sequence >= 1 && vocab >= 1 && vocab <= INT32_MAX, "batch {} sequence {} vocab {}",
        batch, sequence, vocab);
  return std::make_unique<Synthetic>(batch, sequence, vocab);
}

}  // namespace switchyard
