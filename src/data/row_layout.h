// Which tokens of a stream stand in which row. A row follows from its number alone, so nothing has to be
// remembered to go on with it.
#pragma once

#include <cstdint>
#include <memory>

#include "data/dataset.h"
#include "data/token_stream.h"

namespace switchyard {

// The tokens [begin, end) of a stream; the first `inputs` of them are inputs, and where there is one more it
// is the last one's target.
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

// The layout that `packing` asks for; `stream` must outlive it. Training drops the last incomplete row where
// rows are cut from all tokens, held-out data keeps it. In memory: nothing where a row is a document or a
// range of tokens; 8 bytes for 256 documents where these are split, 16 for 64 rows where their number in a
// row is limited, and then the index of all documents is read once. Error(runtime) for a stream that is
// corrupt.
std::unique_ptr<RowLayout> make_row_layout(const TokenStream& stream, const PackingOptions& packing,
                                           DataSide side);

}  // namespace switchyard
