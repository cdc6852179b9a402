// Rows packed from documents.
#pragma once

#include <cstdint>
#include <span>

#include "data/dataset.h"

namespace switchyard {

// A batch of [rows, sequence] zeros: padding everywhere.
Batch empty_batch(std::int64_t rows, std::int64_t sequence);

// Fills row `b` of `out` from a stream of documents one after another. `tokens`: of the stream from the row's
// first input on: `inputs` of them, at most S, and perhaps one more, which is only a target. `starts`: where
// documents start among them, from place 1 on, ascending; the row begins at position 0 wherever in a document
// it is cut. The rest of the row stays padding, and a document's last token has no target.
void pack_row(std::span<const std::int32_t> tokens, std::int64_t inputs, std::span<const std::int64_t> starts,
              std::int64_t b, Batch& out);

// Copies `count` rows from row `a` on to `to`, from row `b` on.
void copy_rows(const Batch& from, std::int64_t a, Batch& to, std::int64_t b, std::int64_t count);

}  // namespace switchyard
