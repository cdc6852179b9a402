// Box: an axis-aligned part of a tensor, and the contiguous runs of memory that make it up.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/tensor.h"

namespace switchyard {

struct Box {
  Shape start, shape;  // as many dims as the tensor has
  bool operator==(const Box&) const = default;
};

Box whole_box(const Shape& shape);
bool inside(const Box& box, const Shape& shape);
// The intersection of a and b; if they do not overlap, some dim of its shape is 0.
Box intersection(const Box& a, const Box& b);
std::string to_string(const Box& box);  // "[2:4,0:16]"

// Visits the contiguous runs of a box in row-major order. A run has the index of its first element in the
// tensor, the index of that element within the box, and its length in elements.
using VisitRun = std::function<void(std::int64_t in_tensor, std::int64_t in_box, std::int64_t count)>;
void for_runs(const Shape& tensor, const Box& box, const VisitRun& visit);

// Covers elements [begin, end) of a block, in the block's row-major order, by boxes of the block's tensor of
// at most `most` >= 1 elements each. Each box is contiguous in the block and follows the one before.
std::vector<Box> boxes_of_range(const Box& block, std::int64_t begin, std::int64_t end, std::int64_t most);

}  // namespace switchyard
