// Passes: what a layer does with rows that the ragged buffer has no room for, where none may be dropped
// (moe_dropless_fallback).
//
// 1. All ranks of the mesh run the same number of passes, some of them perhaps on no rows: collectives inside
//    a pass, and what backward does again, then meet.
// 2. A pass keeps nothing for backward but indices and the weights that travelled with rows. It runs in a
//    remat region of its own, so that neither forward nor backward ever hold the rows of two passes.
#pragma once

#include <functional>
#include <vector>

#include "moe/dispatch/dispatch.h"

namespace switchyard {

using RowCounts = std::vector<std::vector<std::int64_t>>;  // [source][expert]

// Which of the rows for one rank's experts pass `pass` of `passes` takes, by expert and source: past the
// first `skipped`, `kept`. All passes together take every row once; one takes at most ⌈all rows / passes⌉,
// and of each source about the same share.
struct RowsOfPass {
  RowCounts skipped, kept;
};
RowsOfPass rows_of_pass(const RowCounts& counts, std::int64_t pass, std::int64_t passes);

// The most rows of a pass, where `tokens` tokens of a group of `ranks` expert-parallel ranks may take more
// than one; 0 where they cannot.
std::int64_t cap_of_passes(const MoeExecution& execution, std::int64_t tokens, std::int64_t slots,
                           std::int64_t ranks);

// Passes of at most `cap` rows that the busiest rank of the mesh needs, at least 1. `most_rows`: for the
// busiest rank of this expert-parallel group. `tokens`: of one; over the axes that split it groups differ.
std::int64_t agree_on_passes(Context& context, std::int64_t most_rows, std::int64_t cap,
                             const Sharding& tokens, const Axes& experts);

// Runs every pass and adds up what they give, laid out as `layout`.
DispatchResult run_passes(Context& context, std::int64_t passes, const Sharding& layout,
                          const std::function<DispatchResult(std::int64_t pass)>& run);

}  // namespace switchyard
