// Further passes through the experts for rows that the ragged buffer has no room for,
// when no row may be dropped (moe_dropless_fallback).
//
// 1. All ranks of the mesh run the same number of passes, some perhaps without rows. So collectives inside
//    a pass, and those that backward repeats, match on all ranks.
// 2. A pass keeps only indices and the rows' weights for backward. It runs in a remat region of its own, so
//    neither forward nor backward ever holds the rows of two passes.
#pragma once

#include <functional>
#include <vector>

#include "moe/dispatch/dispatch.h"

namespace switchyard {

using RowCounts = std::vector<std::vector<std::int64_t>>;  // [source][expert]

// The rows for one rank's experts that pass `pass` of `passes` takes, by source and expert: it skips
// `skipped` rows and takes the next `kept`. All passes together take every row once; one takes at most ⌈all
// rows / passes⌉, with about the same share of each source.
struct RowsOfPass {
  RowCounts skipped, kept;
};
RowsOfPass rows_of_pass(const RowCounts& counts, std::int64_t pass, std::int64_t passes);

// may_need_passes: a group of `ranks` expert-parallel ranks may need several passes; all ranks of the mesh
// agree. cap_of_passes: the most rows of a pass in that case, for `rows` rows of the group.
bool may_need_passes(const MoeExecution& execution, std::int64_t ranks);
std::int64_t cap_of_passes(const MoeExecution& execution, std::int64_t rows, std::int64_t ranks);

// Passes of at most `cap` rows that the mesh's busiest rank needs, at least 1. `most_rows`: rows of the
// busiest rank in this expert-parallel group. `tokens`: sharding of the tokens; groups differ over its axes.
std::int64_t agree_on_passes(Context& context, std::int64_t most_rows, std::int64_t cap,
                             const Sharding& tokens, const Axes& experts);

// Runs every pass and sums their results, laid out as `layout`.
DispatchResult run_passes(Context& context, std::int64_t passes, const Sharding& layout,
                          const std::function<DispatchResult(std::int64_t pass)>& run);

}  // namespace switchyard
