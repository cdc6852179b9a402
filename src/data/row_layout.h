// Assigns the tokens of a stream to rows. A row follows from its number alone,
// so no state is needed to resume.
#pragma once

#include <cstdint>
#include <memory>

#include "data/dataset.h"
#include "data/token_stream.h"

namespace switchyard {

// The tokens [begin, end) of a stream; the first `inputs` of them are inputs, and one more, if present, is
// the target of the last input.
struct RowRange {
  std::int64_t begin, end, inputs;
};

// Immutable, usable from several threads.
class RowLayout {
 public:
  virtual ~RowLayout() = default;
  virtual std::int64_t rows() const = 0;
  virtual RowRange row(std::int64_t row) const = 0;  // 0 <= row < rows()
};

enum class DataSide { train, held_out };

// Returns the layout for `packing`; `stream` must outlive it. When rows are cut from concatenated tokens,
// training drops the last incomplete row and held-out data keeps it. Memory: none when a row is a document or
// a range of tokens; 8 bytes per 256 documents when documents are split; 16 bytes per 64 rows when the number
// of documents per row is limited, and then the index of all documents is read once. Error(runtime) when the
// stream is corrupt.
std::unique_ptr<RowLayout> make_row_layout(const DocumentStream& stream, const PackingOptions& packing,
                                           DataSide side);

}  // namespace switchyard
