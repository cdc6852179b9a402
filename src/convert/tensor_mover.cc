#include "convert/tensor_mover.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>

#include "checkpoint/save.h"
#include "checkpoint/transpose.h"
#include "convert/hub_form.h"
#include "core/error.h"
#include "kernels/packed/packed_weights.h"

namespace switchyard {
namespace {

constexpr std::int64_t kSlabBytes = std::int64_t{4} << 20;

// Rows in a slab. Each row adds one element to every line that the transpose writes, so 32 rows fill one
// memory transfer. `inner`: matrix rows in a row.
std::int64_t slab_rows(std::int64_t row_bytes, std::int64_t inner) {
  const std::int64_t least = std::max<std::int64_t>(1, 32 / inner), rows = kSlabBytes / row_bytes;
  return std::max(least, rows / least * least);
}

// Runs pieces of [0, count) on the pool; the first exception is thrown on when all have ended.
void for_pieces(ThreadPool& pool, std::int64_t count, std::int64_t grain,
                const std::function<void(std::int64_t, std::int64_t)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  pool.for_range(count, grain, [&](std::int64_t begin, std::int64_t end) {
    try {
      for (std::int64_t i = begin; i < end; i += grain) body(i, std::min(end, i + grain));
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
    }
  });
  if (first) std::rethrow_exception(first);
}

}  // namespace

Tensor TensorMover::move(const TensorMove& move, const ReadRows& read) {
  Tensor out(move.dtype, move.to);
  const std::int64_t elements = num_elements(move.from);
  CHECK(elements == out.size(), "{} becomes {}", to_string(move.from), to_string(move.to));
  if (elements == 0) return out;
  const std::size_t element = size_of(move.dtype);
  const std::int64_t rows = move.from.empty() ? 1 : move.from[0], row = elements / rows;
  // Matrix rows in each row of the first dimension: heads are apart in some.
  const std::int64_t inner = move.transposed ? move.matrix_rows / rows : 1;
  for_pieces(
      pool_, rows, slab_rows(row * static_cast<std::int64_t>(element), inner),
      [&](std::int64_t begin, std::int64_t end) {
        const Tensor slab = scaled(read(begin, end), move.factor, move.dtype);
        CHECK(slab.size() == (end - begin) * row, "{} elements of rows [{}, {})", slab.size(), begin, end);
        if (!move.transposed) {
          std::memcpy(out.raw() + static_cast<std::size_t>(begin * row) * element, slab.raw(), slab.bytes());
        } else {
          transpose(element, slab.raw(), (end - begin) * inner, row / inner,
                    out.raw() + static_cast<std::size_t>(begin * inner) * element, move.matrix_rows);
        }
      });
  return out;
}

bool TensorMover::pack(const Tensor& dense, std::int64_t inputs, const Tensor& packed) {
  const std::int64_t outputs = dense.size() / inputs;
  return pack_weights(
      pool_,
      {.dense = dense.view().reshaped({inputs, outputs}),
       .packed = packed.view().reshaped({inputs / block_inputs(packed.dtype()), outputs / kBlockOutputs})});
}

std::vector<Chunk> TensorMover::chunks_of(const StoredTensor& tensor, const std::byte* data) {
  const auto element = static_cast<std::int64_t>(size_of(tensor.dtype));
  std::vector<Chunk> chunks;
  std::vector<const std::byte*> begins;
  for (Box& box : boxes_of_range(whole_box(tensor.shape), 0, num_elements(tensor.shape),
                                 PieceWriter::kChunkBytes / element)) {
    begins.push_back(data);
    data += num_elements(box.shape) * element;
    chunks.push_back({std::move(box), 0});
  }
  for_pieces(pool_, static_cast<std::int64_t>(chunks.size()), 1, [&](std::int64_t i, std::int64_t) {
    Chunk& chunk = chunks[static_cast<std::size_t>(i)];
    chunk.xxh3 = XXH3_64bits(begins[static_cast<std::size_t>(i)],
                             static_cast<std::size_t>(num_elements(chunk.box.shape) * element));
  });
  return chunks;
}

}  // namespace switchyard
