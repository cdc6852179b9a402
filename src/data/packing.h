// Packs documents into rows.
#pragma once

#include <cstdint>
#include <span>

#include "data/dataset.h"

namespace switchyard {

// Returns a batch of [rows, sequence] zeros, which is all padding.
Batch empty_batch(std::int64_t rows, std::int64_t sequence);

// Fills row `b` of `out` from a stream of concatenated documents. `tokens`: the stream's tokens from the
// row's first input on: `inputs` <= S of them, and possibly one more, only a target. `starts`: indices among
// them, from 1 on and ascending, where documents start; the row starts at position 0 even inside a document.
// The rest of the row is padding, and a document's last token has no target. `counts`: 0 for a token that is
// no target, as long as `tokens`; empty: all are.
void pack_row(std::span<const std::int32_t> tokens, std::int64_t inputs, std::span<const std::int64_t> starts,
              std::int64_t b, Batch& out, std::span<const std::uint8_t> counts = {});

// Copies `count` rows, from row `a` on, to the rows of `to` from row `b` on.
void copy_rows(const Batch& from, std::int64_t a, Batch& to, std::int64_t b, std::int64_t count);

}  // namespace switchyard
