// Rows packed from documents.
#pragma once

#include <cstdint>
#include <span>

#include "data/dataset.h"

namespace switchyard {

// A batch of [rows, sequence] zeros: padding everywhere.
Batch empty_batch(std::int64_t rows, std::int64_t sequence);

// Fills row `b` of `out` from a stream of documents one after another. `tokens`: of the stream from the row's
// first input on, up to S + 1 of them: inputs and, one further, targets. `starts`: where documents start
// among them, from place 1 on, ascending; the row begins at position 0 wherever in a document it is cut. What
// `tokens` does not reach stays padding, and a document's last token has no target.
void pack_row(std::span<const std::int32_t> tokens, std::span<const std::int64_t> starts, std::int64_t b,
              Batch& out);

}  // namespace switchyard
