#include "moe/assumed_load.h"

#include <algorithm>
#include <cmath>

namespace switchyard {

std::vector<std::int64_t> even_groups(std::int64_t rows, std::int64_t groups) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t g = 0; g < groups; ++g) {
    const Slice slice = slice_of(rows, static_cast<int>(groups), static_cast<int>(g));
    sizes.push_back(slice.end - slice.begin);
  }
  return sizes;
}

std::vector<std::int64_t> assumed_rows(const Context& context, std::int64_t tokens, std::int64_t slots,
                                       std::int64_t experts, std::int64_t first, std::int64_t count) {
  const std::int64_t total = tokens * slots;
  std::vector<std::int64_t> rows = even_groups(total, experts);
  const double factor = context.assumed->imbalance;
  if (factor == 1 || count == experts) return rows;
  const double fair = static_cast<double>(total) * static_cast<double>(count) / static_cast<double>(experts);
  const std::int64_t most = tokens * std::min(count, slots);
  const std::int64_t here =
      std::clamp(static_cast<std::int64_t>(std::llround(factor * fair)), std::int64_t{0}, most);
  const auto hot = even_groups(here, count), rest = even_groups(total - here, experts - count);
  for (std::int64_t e = 0; e < experts; ++e) {
    const bool inside = e >= first && e < first + count;
    rows[static_cast<std::size_t>(e)] = inside ? hot[static_cast<std::size_t>(e - first)]
                                               : rest[static_cast<std::size_t>(e < first ? e : e - count)];
  }
  return rows;
}

}  // namespace switchyard
