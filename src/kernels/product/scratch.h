// Scratch: memory for what a composed kernel makes between two others, where its operands are.
#pragma once

#include <algorithm>
#include <optional>

#include "core/tensor.h"
#include "kernels/cuda/workspace.h"

namespace switchyard {

class Scratch {
 public:
  // On the device of `like`, charged to the rank that the thread runs. An empty view is defined, too.
  Scratch(const TensorView& like, DType dtype, const Shape& shape) {
    const std::size_t bytes =
        std::max<std::size_t>(1, static_cast<std::size_t>(num_elements(shape)) * size_of(dtype));
    if (like.on_gpu()) {
      view_ = there_.emplace(like, bytes).view(dtype, shape);
    } else {
      Buffer& buffer = here_.emplace(bytes);
      view_ = TensorView(dtype, shape, buffer.data(), buffer.device());
    }
  }
  const TensorView& view() const { return view_; }

 private:
  std::optional<Buffer> here_;
  std::optional<gpu::Workspace> there_;
  TensorView view_;
};

}  // namespace switchyard
