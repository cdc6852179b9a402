// A training step that a GPU does without the host in between: what the step needs goes there in one copy,
// the GPU judges the step by itself, and what the step gave comes back in one copy. So its work may be
// recorded and launched as a graph (core/graph_cache.h).
#pragma once

#include <span>
#include <vector>

#include "core/step_upload.h"
#include "kernels/optimizer/step_judge.h"
#include "models/decoder.h"

namespace switchyard {

// A step's batches and numbers in a GPU's memory, at addresses that stay.
class StepInputs {
 public:
  // Places the first step's microbatches of `rows` rows; later ones have as many tensors of the same shapes.
  // For one rank, which holds whole batches.
  StepInputs(Context& context, std::span<const Batch> micro, std::int64_t rows, std::int64_t predictions);

  // True when `micro` has the shapes that these inputs have.
  bool takes(std::span<const Batch> micro) const;
  // Sends a step's batches and numbers.
  void send(std::span<const Batch> micro, const UpdateNumbers& numbers);
  const std::vector<DeviceBatch>& batches() const { return batches_; }
  TensorView numbers() const { return numbers_.view(); }

 private:
  std::vector<Tensor> tensors_of(std::span<const Batch> micro) const;

  const std::int64_t predictions_;
  std::vector<Shape> shapes_;         // of all tensors, in the order of tensors_of()
  std::vector<std::size_t> offsets_;  // of each in the upload
  std::size_t numbers_offset_ = 0;
  std::unique_ptr<StepUpload> upload_;
  std::vector<DeviceBatch> batches_;
  Tensor numbers_;
};

// What a step gives: one block of the GPU's memory, in parts.
class StepReport {
 public:
  // f64 [ranges] each, f32 [passes, losses], i32 [layers, experts]; empty where a size is 0.
  struct Sizes {
    std::int64_t ranges = 0, passes = 0, losses = 0, layers = 0, experts = 0;
  };
  StepReport() = default;
  StepReport(const Memory& memory, const Sizes& sizes);

  const Sizes& sizes() const { return sizes_; }
  Tensor gradient_squares() const { return part(DType::f64, {sizes_.ranges}, 0); }
  Tensor weight_squares() const { return part(DType::f64, {sizes_.ranges}, 1); }
  Tensor numbers() const { return part(DType::f32, {16}, 2); }
  Tensor losses() const { return part(DType::f32, {sizes_.passes, sizes_.losses}, 3); }
  Tensor loads() const { return part(DType::i32, {sizes_.layers, sizes_.experts}, 4); }
  // The same parts in memory of the host, by one copy.
  StepReport on_host(Context& context) const;

 private:
  Tensor part(DType dtype, const Shape& shape, std::size_t number) const;
  std::vector<std::size_t> offsets() const;  // of the parts, and their end

  Sizes sizes_;
  Tensor block_;
};

}  // namespace switchyard
