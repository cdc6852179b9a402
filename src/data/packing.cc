#include "data/packing.h"

#include <algorithm>

namespace switchyard {

Batch empty_batch(std::int64_t rows, std::int64_t sequence) {
  Batch batch;
  for (Tensor* t : {&batch.inputs, &batch.targets, &batch.inputs_position, &batch.inputs_segmentation,
                    &batch.targets_segmentation}) {
    *t = Tensor::zeros(DType::i32, {rows, sequence});
  }
  return batch;
}

void pack_row(std::span<const std::int32_t> tokens, std::span<const std::int64_t> starts, std::int64_t b,
              Batch& out) {
  const std::int64_t sequence = out.inputs.shape()[1];
  const auto at = [&](Tensor& t) { return t.data<std::int32_t>() + b * sequence; };
  std::int32_t *inputs = at(out.inputs), *targets = at(out.targets), *positions = at(out.inputs_position),
               *segments = at(out.inputs_segmentation), *target_segments = at(out.targets_segmentation);
  const auto end = std::min(sequence, static_cast<std::int64_t>(tokens.size()) - 1);
  auto next_start = starts.begin();
  std::int32_t segment = 1, position = 0;
  for (std::int64_t s = 0; s < end; ++s) {
    if (next_start != starts.end() && *next_start == s) ++segment, position = 0, ++next_start;
    inputs[s] = tokens[static_cast<std::size_t>(s)];
    positions[s] = position++;
    segments[s] = segment;
    if (next_start != starts.end() && *next_start == s + 1) continue;  // else the target is of another text
    targets[s] = tokens[static_cast<std::size_t>(s) + 1];
    target_segments[s] = segment;
  }
}

}  // namespace switchyard
