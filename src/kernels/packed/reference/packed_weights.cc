// The scalar truth of packing and unpacking.
#include "kernels/packed/packed_weights.h"

#include "kernels/packed/packed_block.h"
#include "kernels/pointwise/reference/elementwise_access.h"

namespace switchyard::ref {
namespace {

// body(block, group, dense offset of its first value, output within the block) of every group
// of some rows of blocks.
template <typename Body>
void for_groups(const BlockRows& rows, std::int64_t begin, std::int64_t end, const Body& body) {
  const auto bytes = static_cast<std::int64_t>(size_of(rows.packed));
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t c = 0; c < rows.columns; ++c) {
      for (std::int64_t g = 0; g < groups_of(rows.packed); ++g) {
        const std::int64_t input = r * block_inputs(rows.packed) + g * kGroupInputs;
        for (std::int64_t n = 0; n < kBlockOutputs; ++n)
          body(rows.blocks + (r * rows.stride + c) * bytes, g, input * rows.leading + c * kBlockOutputs + n,
               n);
      }
    }
  }
}

}  // namespace

void pack_block_rows(const BlockRows& rows, std::int64_t begin, std::int64_t end) {
  for_groups(rows, begin, end,
             [&](std::byte* block, std::int64_t g, std::int64_t first, std::int64_t output) {
               std::array<float, kGroupInputs> values;
               for (std::int64_t i = 0; i < kGroupInputs; ++i)
                 values[static_cast<std::size_t>(i)] = at(rows.dense, rows.dtype, first + i * rows.leading);
               write_group(rows.packed, nearest_group(rows.packed, values), block, output, g);
             });
}

void unpack_block_rows(const BlockRows& rows, std::int64_t begin, std::int64_t end) {
  for_groups(rows, begin, end,
             [&](const std::byte* block, std::int64_t g, std::int64_t first, std::int64_t output) {
               const auto values = values_of(rows.packed, read_group(rows.packed, block, output, g));
               for (std::int64_t i = 0; i < kGroupInputs; ++i)
                 put(rows.dense, rows.dtype, first + i * rows.leading, values[static_cast<std::size_t>(i)]);
             });
}

}  // namespace switchyard::ref
