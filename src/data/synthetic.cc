#include <fmt/format.h>

#include "core/rng.h"
#include "data/dataset.h"

namespace switchyard {
namespace {

class Synthetic : public Dataset {
 public:
  Synthetic(std::int64_t batch, std::int64_t sequence, std::int64_t vocab) : vocab_(vocab) {
    const Shape shape = {batch, sequence};
    for (Tensor* t : {&batch_.inputs, &batch_.targets, &batch_.inputs_position, &batch_.inputs_segmentation,
                      &batch_.targets_segmentation}) {
      *t = Tensor(DType::i32, shape);
    }
    const auto token = [&](std::int64_t row, std::int64_t column) {
      return rng_randint(rng_key(0), static_cast<std::uint64_t>(row * (sequence + 1) + column), 0,
                         static_cast<std::int32_t>(vocab));
    };
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t s = 0; s < sequence; ++s) {
        const std::int64_t i = b * sequence + s;
        batch_.inputs.data<std::int32_t>()[i] = token(b, s);
        batch_.targets.data<std::int32_t>()[i] = token(b, s + 1);
        batch_.inputs_position.data<std::int32_t>()[i] = static_cast<std::int32_t>(s);
        batch_.inputs_segmentation.data<std::int32_t>()[i] = 1;
        batch_.targets_segmentation.data<std::int32_t>()[i] = 1;
      }
    }
  }

  // A copy, so that no caller can change another's.
  Batch next(std::int64_t) override {
    return {batch_.inputs.clone(), batch_.targets.clone(), batch_.inputs_position.clone(),
            batch_.inputs_segmentation.clone(), batch_.targets_segmentation.clone()};
  }
  std::int64_t batches() const override { return 1; }
  std::string description() const override {
    return fmt::format("synthetic: one batch of {} uniform random tokens below {}",
                       to_string(batch_.inputs.shape()), vocab_);
  }

 private:
  std::int64_t vocab_;
  Batch batch_;
};

}  // namespace

std::unique_ptr<Dataset> make_synthetic(std::int64_t batch, std::int64_t sequence, std::int64_t vocab) {
  CHECK(batch >= 1 && sequence >= 1 && vocab >= 1 && vocab <= INT32_MAX, "batch {} sequence {} vocab {}",
        batch, sequence, vocab);
  return std::make_unique<Synthetic>(batch, sequence, vocab);
}

}  // namespace switchyard
