#include "moe/dispatch/passes.h"

#include <algorithm>
#include <numeric>

#include "autograd/remat.h"
#include "moe/rows.h"
#include "ops/basic.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// Counts the numbers j in [begin, end) with j mod n = i.
std::int64_t share_of(std::int64_t begin, std::int64_t end, std::int64_t i, std::int64_t n) {
  const auto below = [&](std::int64_t limit) { return (limit - i + n - 1) / n; };
  return below(end) - below(begin);
}

// Returns how many rows of each group are among the first `limit`, with the groups in order.
std::vector<std::int64_t> first_of(const std::vector<std::int64_t>& sizes, std::int64_t limit) {
  std::vector<std::int64_t> result;
  for (const std::int64_t n : sizes) {
    result.push_back(std::min(n, limit));
    limit -= result.back();
  }
  return result;
}

}  // namespace

RowsOfPass rows_of_pass(const RowCounts& counts, std::int64_t pass, std::int64_t passes) {
  RowsOfPass result;
  std::int64_t begin = 0;
  for (const auto& source : counts) {
    const std::int64_t end = std::accumulate(source.begin(), source.end(), begin);
    // Rows are dealt to passes one by one, in the order of all sources, so that passes get even shares.
    std::int64_t before = 0;
    for (std::int64_t i = 0; i < pass; ++i) before += share_of(begin, end, i, passes);
    std::vector<std::int64_t> kept = first_of(source, before + share_of(begin, end, pass, passes));
    result.skipped.push_back(first_of(source, before));
    std::ranges::transform(kept, result.skipped.back(), kept.begin(), std::minus<>());
    result.kept.push_back(std::move(kept));
    begin = end;
  }
  return result;
}

bool may_need_passes(const MoeExecution& execution, std::int64_t ranks) {
  return execution.further_passes && execution.ragged_buffer_factor > 0 &&
         execution.ragged_buffer_factor < static_cast<double>(ranks);
}

std::int64_t cap_of_passes(const MoeExecution& execution, std::int64_t rows, std::int64_t ranks) {
  return std::max<std::int64_t>(1, buffer_rows(execution.ragged_buffer_factor, rows, ranks));
}

std::int64_t agree_on_passes(Context& context, std::int64_t most_rows, std::int64_t cap,
                             const Sharding& tokens, const Axes& experts) {
  const std::int64_t own = std::max<std::int64_t>(1, (most_rows + cap - 1) / cap);
  Axes groups;
  for (std::size_t d = 0; d < 2; ++d) {
    for (const Axis axis : tokens.dims[d]) {
      if (!experts.contains(axis)) groups.push_back(axis);
    }
  }
  const ProcessGroup& group = context.group(groups);
  if (group.size() == 1) return own;
  const auto mine = static_cast<std::int32_t>(own);
  std::vector<std::int32_t> all(static_cast<std::size_t>(group.size()), mine);
  inside_op(context, "agree_on_passes", "forward",
            [&] { context.comm->all_gather(group, host_view(std::span(&mine, 1)), host_view(all)); });
  return std::ranges::max(all);
}

DispatchResult run_passes(Context& context, std::int64_t passes, const Sharding& layout,
                          const std::function<DispatchResult(std::int64_t pass)>& run) {
  static const RematPolicy keep_nothing{true, {}, {}};
  DispatchResult all;
  for (std::int64_t i = 0; i < passes; ++i) {
    Array y;
    {
      const RematRegion region(context, keep_nothing);
      DispatchResult result = run(i);
      y = reshard(context, result.y, layout);
      result.y = all.y;
      all = std::move(result);
    }
    all.y = i == 0 ? y : add(context, all.y, y);
  }
  all.passes = passes;
  return all;
}

}  // namespace switchyard
