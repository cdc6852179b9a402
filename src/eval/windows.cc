#include "eval/windows.h"

#include <algorithm>

#include "core/error.h"

namespace switchyard {

std::vector<Window> windows_of(std::int64_t tokens, std::int64_t window, std::int64_t stride) {
  CHECK(stride >= 1 && stride <= window, "stride {} of windows of {}", stride, window);
  std::vector<Window> windows;
  const std::int64_t inputs = tokens - 1;  // after the last token there is nothing to expect
  for (std::int64_t begin = 0, done = 0; done < inputs; begin += stride) {
    const std::int64_t end = std::min(begin + window, inputs);
    windows.push_back({begin, end - begin, done - begin});
    done = end;
  }
  return windows;
}

Batch batch_of_windows(std::span<const std::int32_t> tokens, std::span<const Window> windows,
                       std::int64_t rows, std::int64_t length) {
  CHECK(static_cast<std::int64_t>(windows.size()) <= rows, "{} windows in {} rows", windows.size(), rows);
  Batch batch;
  for (Tensor* const x : {&batch.inputs, &batch.targets, &batch.inputs_position, &batch.inputs_segmentation,
                          &batch.targets_segmentation})
    *x = Memory().zeros(DType::i32, {rows, length});
  for (std::size_t row = 0; row < windows.size(); ++row) {
    const Window& window = windows[row];
    CHECK(window.length <= length, "a window of {} tokens in a row of {}", window.length, length);
    for (std::int64_t i = 0; i < window.length; ++i) {
      const auto at = row * static_cast<std::size_t>(length) + static_cast<std::size_t>(i);
      batch.inputs.span<std::int32_t>()[at] = tokens[static_cast<std::size_t>(window.begin + i)];
      batch.inputs_position.span<std::int32_t>()[at] = static_cast<std::int32_t>(i);
      batch.inputs_segmentation.span<std::int32_t>()[at] = 1;
    }
  }
  return batch;
}

}  // namespace switchyard
