#include <limits>

#include "core/error.h"
#include "kernels/ragged_rows.h"

namespace switchyard {

SortedRows counting_sort(std::span<const std::int32_t> expert_ids, std::int32_t experts) {
  CHECK(expert_ids.size() <= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()), "{} rows",
        expert_ids.size());
  SortedRows sorted;
  sorted.order.resize(expert_ids.size());
  sorted.revert.resize(expert_ids.size());
  sorted.group_sizes.assign(static_cast<std::size_t>(experts), 0);
  for (const std::int32_t expert : expert_ids) {
    CHECK(expert >= 0 && expert < experts, "expert id {} of {} experts", expert, experts);
    ++sorted.group_sizes[static_cast<std::size_t>(expert)];
  }
  std::vector<std::int64_t> next(static_cast<std::size_t>(experts));
  for (std::size_t e = 1; e < next.size(); ++e) next[e] = next[e - 1] + sorted.group_sizes[e - 1];
  for (std::size_t row = 0; row < expert_ids.size(); ++row) {
    const std::int64_t position = next[static_cast<std::size_t>(expert_ids[row])]++;
    sorted.order[static_cast<std::size_t>(position)] = static_cast<std::int32_t>(row);
    sorted.revert[row] = static_cast<std::int32_t>(position);
  }
  return sorted;
}

}  // namespace switchyard
