#include "train/step_inputs.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "models/prediction.h"

namespace switchyard {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t padded_bytes(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The arrays of a batch in the order of StepInputs::tensors_of, but for the chunks.
std::vector<Array*> arrays_of(DeviceBatch& batch) {
  std::vector<Array*> all{&batch.inputs, &batch.positions, &batch.segments, &batch.targets,
                          &batch.target_segments};
  for (FurtherTokens& further : batch.further)
    all.insert(all.end(), {&further.inputs, &further.targets, &further.target_segments});
  return all;
}

std::size_t bytes_of(const Shape& shape) {
  return static_cast<std::size_t>(num_elements(shape)) * sizeof(std::int32_t);
}

}  // namespace

// The last one is undefined for a batch without chunk segments of its own.
std::vector<Tensor> StepInputs::tensors_of(const Batch& batch) const {
  std::vector<Tensor> all{batch.inputs, batch.inputs_position, batch.inputs_segmentation, batch.targets,
                          batch.targets_segmentation};
  for (const Batch& further : further_batches(batch, predictions_))
    all.insert(all.end(), {further.inputs, further.targets, further.targets_segmentation});
  if (chunk_ > 0) all.push_back(packed_chunk_segments(batch, chunk_));
  return all;
}

std::vector<Shape> StepInputs::shapes_of(std::span<const Batch> micro) const {
  std::vector<Shape> all;
  for (const Batch& batch : micro) {
    for (const Tensor& x : tensors_of(batch)) {
      CHECK(!x.defined() || (x.dtype() == DType::i32 && (x.abstract() || x.memory().device().is_host())),
            "tokens of {}", name_of(x.dtype()));
      all.push_back(x.defined() ? x.shape() : batch.inputs.shape());
    }
  }
  return all;
}

StepInputs::StepInputs(Context& context, std::span<const Batch> micro, std::int64_t rows,
                       std::int64_t predictions, std::int64_t chunk)
    : predictions_(predictions), chunk_(chunk), shapes_(shapes_of(micro)) {
  std::size_t bytes = 0;
  for (const Shape& shape : shapes_) {
    offsets_.push_back(bytes);
    bytes += padded_bytes(bytes_of(shape));
  }
  numbers_offset_ = bytes;
  counts_offset_ = numbers_offset_ + padded_bytes(sizeof(UpdateNumbers));
  upload_ = std::make_unique<StepUpload>(context.memory, counts_offset_ + sizeof(StepCounts));
  numbers_ = upload_->part(DType::f32, {kUpdateNumbers}, numbers_offset_);
  target_count_ = upload_->part(DType::f64, {}, counts_offset_ + offsetof(StepCounts, targets));
  further_count_ = upload_->part(DType::f64, {}, counts_offset_ + offsetof(StepCounts, further_targets));
  const std::size_t of_batch = shapes_.size() / micro.size();
  for (std::size_t i = 0; i < micro.size(); ++i) {
    batches_.push_back(place_own_rows(context, micro[i], rows, predictions));
    take_part(batches_.back(), i * of_batch);
  }
}

// Moves a batch into the upload, whose tensors from `first` on are the batch's.
void StepInputs::take_part(DeviceBatch& batch, std::size_t first) {
  std::size_t at = first;
  const auto in_upload = [&](const Array& like) {
    const Array moved =
        make_leaf(upload_->part(DType::i32, shapes_[at], offsets_[at]), like.shape(), like.sharding(), false);
    ++at;
    return moved;
  };
  for (Array* const array : arrays_of(batch)) {
    CHECK(array->tensor().shape() == shapes_[at], "a rank with a part of its batch");
    *array = in_upload(*array);
  }
  if (chunk_ > 0) chunk_segments_.push_back(in_upload(batch.segments));
}

bool StepInputs::takes(std::span<const Batch> micro) const {
  return shapes_of(micro) == shapes_;
}

void StepInputs::send(std::span<const Batch> micro, const StepCounts& counts, const UpdateNumbers& numbers) {
  form_.clear();
  std::byte* const to = upload_->host();
  std::size_t at = 0;
  for (std::size_t i = 0; i < micro.size(); ++i) {
    const std::vector<Tensor> all = tensors_of(micro[i]);
    for (const Tensor& x : all) {
      if (to != nullptr && x.defined()) std::memcpy(to + offsets_[at], x.raw(), x.bytes());
      ++at;
    }
    const bool chunked = chunk_ > 0 && all.back().defined();
    batches_[i].chunk_segments = chunked ? chunk_segments_[i] : Array();
    form_ += chunked ? '1' : '0';
  }
  if (to == nullptr) return;  // in a plan
  std::memcpy(to + numbers_offset_, &numbers, sizeof(numbers));
  std::memcpy(to + counts_offset_, &counts, sizeof(counts));
  upload_->start();
}

}  // namespace switchyard
