// StepInputs: batches and numbers of a training step that a GPU may record as a graph (core/graph_cache.h),
// at addresses that stay, brought by one copy a step.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/step_upload.h"
#include "kernels/optimizer/update_numbers.h"
#include "models/decoder.h"

namespace switchyard {

// Counts by which a step's losses are divided (LossOptions).
struct StepCounts {
  double targets = 1, further_targets = 1;
};

class StepInputs {
 public:
  // Has room for the microbatches of such a step, of `rows` rows each, and for no others: see takes(). For
  // one rank, which holds whole batches. `predictions` and `chunk`: as for place_own_rows.
  StepInputs(Context& context, std::span<const Batch> micro, std::int64_t rows, std::int64_t predictions,
             std::int64_t chunk);

  // True when `micro` has the shapes that these inputs have.
  bool takes(std::span<const Batch> micro) const;
  // Sends a step's batches and numbers.
  void send(std::span<const Batch> micro, const StepCounts& counts, const UpdateNumbers& numbers);
  const std::vector<DeviceBatch>& batches() const { return batches_; }
  // Which batches have chunk_segments: 0 or 1 for each.
  const std::string& form() const { return form_; }
  const Tensor& target_count() const { return target_count_; }    // f64 []
  const Tensor& further_count() const { return further_count_; }  // f64 []
  TensorView numbers() const { return numbers_.view(); }          // UpdateNumbers

 private:
  std::vector<Tensor> tensors_of(const Batch& batch) const;
  std::vector<Shape> shapes_of(std::span<const Batch> micro) const;
  void take_part(DeviceBatch& batch, std::size_t first);

  const std::int64_t predictions_, chunk_;
  std::vector<Shape> shapes_;         // of all tensors, batch after batch, in the order of tensors_of()
  std::vector<std::size_t> offsets_;  // of each in the upload
  std::size_t numbers_offset_ = 0, counts_offset_ = 0;
  std::unique_ptr<StepUpload> upload_;
  std::vector<DeviceBatch> batches_;
  std::vector<Array> chunk_segments_;  // of each batch, if there are chunks
  std::string form_;
  Tensor numbers_, target_count_, further_count_;
};

}  // namespace switchyard
