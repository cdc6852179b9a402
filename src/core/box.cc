#include "core/box.h"

#include <algorithm>

namespace switchyard {
namespace {

// Cuts a range of the sub-block whose first `dim` indices are fixed to the values in `at`.
class RangeCutter {
 public:
  RangeCutter(const Box& block, std::int64_t most, std::vector<Box>& out)
      : block_(block), most_(most), out_(out), at_(block.start), inner_(block.shape.size(), 1) {
    for (std::size_t d = block.shape.size(); d-- > 1;) inner_[d - 1] = inner_[d] * block.shape[d];
  }

  void cut(std::size_t dim, std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    const std::int64_t inner = inner_[dim];
    std::int64_t row = begin / inner;
    const std::int64_t last = end / inner;
    if (begin % inner != 0 || row == last) {  // begins inside a row
      const std::int64_t row_end = std::min(end, (row + 1) * inner);
      cut_row(dim, row, begin - row * inner, row_end - row * inner);
      ++row;
    }
    cut_rows(dim, row, last);
    if (row <= last) cut_row(dim, last, 0, end - last * inner);
  }

 private:
  void cut_row(std::size_t dim, std::int64_t row, std::int64_t begin, std::int64_t end) {
    at_[dim] = block_.start[dim] + row;
    cut(dim + 1, begin, end);
    at_[dim] = block_.start[dim];
  }
  void cut_rows(std::size_t dim, std::int64_t row, std::int64_t last) {
    const std::int64_t inner = inner_[dim];
    const std::int64_t rows = std::max<std::int64_t>(1, most_ / inner);
    for (; row < last; row += rows) {
      if (inner > most_) {
        cut_row(dim, row, 0, inner);
        continue;
      }
      Box box{at_, Shape(at_.size(), 1)};
      box.start[dim] = block_.start[dim] + row;
      box.shape[dim] = std::min(rows, last - row);
      for (std::size_t d = dim + 1; d < at_.size(); ++d) box.shape[d] = block_.shape[d];
      out_.push_back(std::move(box));
    }
  }

  const Box& block_;
  const std::int64_t most_;
  std::vector<Box>& out_;
  Shape at_;
  Shape inner_;  // elements of one index of a dim
};

}  // namespace

Box whole_box(const Shape& shape) {
  return {Shape(shape.size(), 0), shape};
}

bool inside(const Box& box, const Shape& shape) {
  if (box.start.size() != shape.size() || box.shape.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (box.start[d] < 0 || box.shape[d] < 0 || box.start[d] > shape[d] - box.shape[d]) return false;
  }
  return true;
}

Box intersection(const Box& a, const Box& b) {
  Box both = a;
  for (std::size_t d = 0; d < a.start.size(); ++d) {
    const std::int64_t end = std::min(a.start[d] + a.shape[d], b.start[d] + b.shape[d]);
    both.start[d] = std::max(a.start[d], b.start[d]);
    both.shape[d] = std::max<std::int64_t>(0, end - both.start[d]);
  }
  return both;
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.start.size(); ++d)
    text += fmt::format("{}{}:{}", d == 0 ? "" : ",", box.start[d], box.start[d] + box.shape[d]);
  return text + "]";
}

void for_runs(const Shape& tensor, const Box& box, const VisitRun& visit) {
  std::size_t split = tensor.size();  // dims from `split` on are whole in the box
  while (split > 0 && box.shape[split - 1] == tensor[split - 1]) --split;
  const std::size_t outer = split == 0 ? 0 : split - 1;  // dims that are walked through
  Shape stride(tensor.size(), 1);
  for (std::size_t d = tensor.size(); d-- > 1;) stride[d - 1] = stride[d] * tensor[d];
  std::int64_t run = 1, runs = 1, first = 0;
  for (std::size_t d = outer; d < tensor.size(); ++d) run *= box.shape[d];
  for (std::size_t d = 0; d < outer; ++d) runs *= box.shape[d];
  for (std::size_t d = 0; d < tensor.size(); ++d) first += box.start[d] * stride[d];
  if (run == 0) return;
  Shape index(outer, 0);
  for (std::int64_t i = 0; i < runs; ++i) {
    visit(first, i * run, run);
    for (std::size_t d = outer; d-- > 0;) {
      first += stride[d];
      if (++index[d] < box.shape[d]) break;
      first -= index[d] * stride[d];
      index[d] = 0;
    }
  }
}

std::vector<Box> boxes_of_range(const Box& block, std::int64_t begin, std::int64_t end, std::int64_t most) {
  std::vector<Box> boxes;
  if (begin >= end) return boxes;
  if (block.shape.empty()) {
    boxes.push_back(block);
    return boxes;
  }
  RangeCutter(block, most, boxes).cut(0, begin, end);
  return boxes;
}

}  // namespace switchyard
