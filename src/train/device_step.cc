#include "train/device_step.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "models/prediction.h"

namespace switchyard {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The arrays of a batch in the order of StepInputs::tensors_of.
std::vector<Array*> arrays_of(DeviceBatch& batch) {
  std::vector<Array*> all{&batch.inputs, &batch.positions, &batch.segments, &batch.targets,
                          &batch.target_segments};
  for (FurtherTokens& further : batch.further)
    all.insert(all.end(), {&further.inputs, &further.targets, &further.target_segments});
  return all;
}

}  // namespace

std::vector<Tensor> StepInputs::tensors_of(std::span<const Batch> micro) const {
  std::vector<Tensor> all;
  for (const Batch& batch : micro) {
    all.insert(all.end(), {batch.inputs, batch.inputs_position, batch.inputs_segmentation, batch.targets,
                           batch.targets_segmentation});
    for (const Batch& further : further_batches(batch, predictions_))
      all.insert(all.end(), {further.inputs, further.targets, further.targets_segmentation});
  }
  return all;
}

StepInputs::StepInputs(Context& context, std::span<const Batch> micro, std::int64_t rows,
                       std::int64_t predictions)
    : predictions_(predictions) {
  std::size_t bytes = 0;
  for (const Tensor& x : tensors_of(micro)) {
    CHECK(x.dtype() == DType::i32 && x.memory().device().is_host(), "tokens of {}", name_of(x.dtype()));
    shapes_.push_back(x.shape());
    offsets_.push_back(bytes);
    bytes += aligned(x.bytes());
  }
  numbers_offset_ = bytes;
  upload_ = std::make_unique<StepUpload>(context.memory, bytes + sizeof(UpdateNumbers));
  numbers_ = upload_->part(DType::f32, {16}, numbers_offset_);
  std::size_t at = 0;
  for (const Batch& batch : micro) {
    DeviceBatch placed = place_own_rows(context, batch, rows, predictions_);
    for (Array* const array : arrays_of(placed)) {
      CHECK(array->tensor().shape() == shapes_[at], "a rank with a part of its batch");
      *array = make_leaf(upload_->part(DType::i32, shapes_[at], offsets_[at]), array->shape(),
                         array->sharding(), false);
      ++at;
    }
    batches_.push_back(std::move(placed));
  }
}

bool StepInputs::takes(std::span<const Batch> micro) const {
  const std::vector<Tensor> all = tensors_of(micro);
  return std::ranges::equal(all, shapes_, {}, &Tensor::shape);
}

void StepInputs::send(std::span<const Batch> micro, const UpdateNumbers& numbers) {
  std::byte* const to = upload_->host();
  const std::vector<Tensor> all = tensors_of(micro);
  for (std::size_t i = 0; i < all.size(); ++i) std::memcpy(to + offsets_[i], all[i].raw(), all[i].bytes());
  std::memcpy(to + numbers_offset_, &numbers, sizeof(numbers));
  upload_->start();
}

StepReport::StepReport(const Memory& memory, const Sizes& sizes)
    : sizes_(sizes), block_(memory.zeros(DType::i32, {static_cast<std::int64_t>(offsets().back() / 4)})) {}

std::vector<std::size_t> StepReport::offsets() const {
  const auto doubles = static_cast<std::size_t>(sizes_.ranges) * sizeof(double);
  std::vector<std::size_t> result{0};
  for (const std::size_t bytes : {doubles, doubles, sizeof(UpdateNumbers),
                                  static_cast<std::size_t>(sizes_.passes * sizes_.losses) * sizeof(float),
                                  static_cast<std::size_t>(sizes_.layers * sizes_.experts) * 4})
    result.push_back(result.back() + aligned(bytes));
  return result;
}

Tensor StepReport::part(DType dtype, const Shape& shape, std::size_t number) const {
  return {dtype, shape, block_.buffer(), offsets()[number]};
}

StepReport StepReport::on_host(Context& context) const {
  StepReport host;
  host.sizes_ = sizes_;
  host.block_ =
      read_back(context, block_, "step report", [&] { return Memory().zeros(DType::i32, block_.shape()); });
  return host;
}

}  // namespace switchyard
