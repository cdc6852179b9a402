#include "data/packing.h"

#include <algorithm>

namespace switchyard {

BatchRows::BatchRows(Dataset& data, std::int64_t first_row, std::int64_t count, std::int64_t length)
    : rows(count), sequence(length), read([&data, first_row](std::int64_t begin, std::int64_t end) {
        return data.read(first_row + begin, end - begin);
      }) {}

BatchRows::BatchRows(const Batch& batch)
    : rows(batch.inputs.dim(0)),
      sequence(batch.inputs.dim(1)),
      read([batch](std::int64_t begin, std::int64_t end) -> Batch {
        Batch part{batch.inputs.slice_rows(begin, end), batch.targets.slice_rows(begin, end),
                   batch.inputs_position.slice_rows(begin, end),
                   batch.inputs_segmentation.slice_rows(begin, end),
                   batch.targets_segmentation.slice_rows(begin, end)};
        if (batch.weights.defined()) part.weights = batch.weights.slice_rows(begin, end);
        return part;
      }) {}

Batch empty_batch(std::int64_t rows, std::int64_t sequence) {
  Batch batch;
  for (Tensor* t : {&batch.inputs, &batch.targets, &batch.inputs_position, &batch.inputs_segmentation,
                    &batch.targets_segmentation}) {
    *t = Tensor::zeros(DType::i32, {rows, sequence});
  }
  return batch;
}

void copy_rows(const Batch& from, std::int64_t a, Batch& to, std::int64_t b, std::int64_t count) {
  const auto copy = [&](const Tensor& source, Tensor& target) {
    const std::int64_t sequence = target.shape()[1];
    std::copy_n(source.data<std::int32_t>() + a * sequence, count * sequence,
                target.data<std::int32_t>() + b * sequence);
  };
  copy(from.inputs, to.inputs);
  copy(from.targets, to.targets);
  copy(from.inputs_position, to.inputs_position);
  copy(from.inputs_segmentation, to.inputs_segmentation);
  copy(from.targets_segmentation, to.targets_segmentation);
}

void pack_row(std::span<const std::int32_t> tokens, std::int64_t inputs_count,
              std::span<const std::int64_t> starts, std::int64_t b, Batch& out,
              std::span<const std::uint8_t> counts) {
  const std::int64_t sequence = out.inputs.shape()[1];
  const auto at = [&](Tensor& t) { return t.data<std::int32_t>() + b * sequence; };
  std::int32_t *inputs = at(out.inputs), *targets = at(out.targets), *positions = at(out.inputs_position),
               *segments = at(out.inputs_segmentation), *target_segments = at(out.targets_segmentation);
  const auto count = static_cast<std::int64_t>(tokens.size());
  auto next_start = starts.begin();
  std::int32_t segment = 1, position = 0;
  for (std::int64_t s = 0; s < inputs_count; ++s) {
    if (next_start != starts.end() && *next_start == s) ++segment, position = 0, ++next_start;
    inputs[s] = tokens[static_cast<std::size_t>(s)];
    positions[s] = position++;
    segments[s] = segment;
    // No token follows, or the next token begins another document.
    if (s + 1 == count || (next_start != starts.end() && *next_start == s + 1)) continue;
    if (!counts.empty() && counts[static_cast<std::size_t>(s) + 1] == 0) continue;
    targets[s] = tokens[static_cast<std::size_t>(s) + 1];
    target_segments[s] = segment;
  }
}

}  // namespace switchyard
