// Box: an axis-aligned part of a tensor, and the runs of memory that it is made of.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/tensor.h"

namespace switchyard {

struct Box {
  Shape start, shape;  // of as many dims as the tensor
  bool operator==(const Box&) const = default;
};

Box whole_box(const Shape& shape);
bool inside(const Box& box, const Shape& shape);
// The common part; any dim of its shape is 0 when there is none.
Box intersection(const Box& a, const Box& b);
std::string to_string(const Box& box);  // "[2:4,0:16]"

// Visits a box's contiguous runs in row-major order: index of a run's first element in the tensor, in the box
// by itself, and its length in elements.
using VisitRun = std::function<void(std::int64_t in_tensor, std::int64_t in_box, std::int64_t count)>;
void for_runs(const Shape& tensor, const Box& box, const VisitRun& visit);

// Elements [begin, end) of a block's row-major order as boxes of the tensor that the block is a part of, in
// that order, each of at most `most` >= 1 elements. So each is contiguous in the block, one after the other.
std::vector<Box> boxes_of_range(const Box& block, std::int64_t begin, std::int64_t end, std::int64_t most);

}  // namespace switchyard
