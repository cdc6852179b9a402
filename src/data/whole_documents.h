// Rows of whole documents.
#pragma once

#include <algorithm>
#include <vector>

#include "data/row_layout.h"

namespace switchyard {

// Rows that the stream holds one after the other, each of whole documents.
class WholeDocuments : public RowLayout {
 public:
  explicit WholeDocuments(std::int64_t sequence) : sequence_(sequence) {}
  void end_row(std::int64_t tokens) { ends_.push_back(tokens); }
  std::int64_t rows() const override { return std::ssize(ends_); }
  RowRange row(std::int64_t row) const override {
    const std::int64_t begin = row == 0 ? 0 : ends_[static_cast<std::size_t>(row) - 1],
                       end = ends_[static_cast<std::size_t>(row)];
    return {begin, end, std::min(sequence_, end - begin)};
  }

 private:
  std::int64_t sequence_;
  std::vector<std::int64_t> ends_;
};

}  // namespace switchyard
