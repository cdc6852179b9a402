#include "checkpoint/mxfp4.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "kernels/packed/packed_block.h"

namespace switchyard {
namespace {

constexpr std::int64_t kGroupBytes = kGroupInputs / 2;

// A group's numbers as e2m1, and its exponent.
PackedGroup group_at(const Mxfp4Stack& stack, std::int64_t group) {
  PackedGroup values;
  values.scale = static_cast<std::uint8_t>(stack.scales.bytes[static_cast<std::size_t>(group)]);
  for (std::int64_t j = 0; j < kGroupBytes; ++j) {
    const auto pair =
        static_cast<std::uint8_t>(stack.blocks.bytes[static_cast<std::size_t>(group * kGroupBytes + j)]);
    values.numbers[static_cast<std::size_t>(2 * j)] = static_cast<std::int8_t>(pair & 15);
    values.numbers[static_cast<std::size_t>(2 * j + 1)] = static_cast<std::int8_t>(pair >> 4);
  }
  return values;
}

}  // namespace

std::string mxfp4_problem(const Mxfp4Stack& stack) {
  const Shape &blocks = stack.blocks.shape, &scales = stack.scales.shape;
  if (stack.blocks.dtype != "U8" || blocks.size() != 4 || blocks[3] != kGroupBytes)
    return fmt::format("its blocks are {} {}, expected U8 [experts, outputs, groups, 16]", stack.blocks.dtype,
                       to_string(blocks));
  const Shape wanted{blocks[0], blocks[1], blocks[2]};
  if (stack.scales.dtype != "U8" || scales != wanted)
    return fmt::format("its scales are {} {}, expected U8 {}", stack.scales.dtype, to_string(scales),
                       to_string(wanted));
  return {};
}

std::optional<std::int64_t> mxfp4_infinite_scale(const Mxfp4Stack& stack, std::int64_t begin,
                                                 std::int64_t end) {
  constexpr std::byte kNoNumber{255};
  for (std::int64_t group = begin; group < end; ++group) {
    if (stack.scales.bytes[static_cast<std::size_t>(group)] == kNoNumber) return group;
  }
  return std::nullopt;
}

Tensor mxfp4_matrices(const Mxfp4Stack& stack, std::int64_t begin, std::int64_t end, DType dtype) {
  const Shape whole = stack.shape();
  CHECK(0 <= begin && begin <= end && end <= whole[0] && is_float(dtype), "matrices [{}, {}) of {}", begin,
        end, to_string(whole));
  const Tensor out(dtype, {end - begin, whole[1], whole[2]});
  const std::int64_t groups = whole[1] * stack.blocks.shape[2];  // of a matrix
  std::int64_t at = 0;
  for (std::int64_t group = begin * groups; group < end * groups; ++group) {
    for (const float value : values_of(DType::packed_mxfp4, group_at(stack, group))) {
      if (dtype == DType::f32)
        out.data<float>()[at++] = value;
      else
        out.data<bfloat16>()[at++] = bfloat16(value);
    }
  }
  return out;
}

Tensor mxfp4_blocks(const Mxfp4Stack& stack, const StackRows& rows) {
  CHECK(rows.count % kBlockOutputs == 0, "{} rows in blocks", rows.count);
  const std::int64_t groups = stack.blocks.shape[2];
  const Tensor blocks(DType::packed_mxfp4, {groups, rows.count / kBlockOutputs});
  constexpr auto kBytes = static_cast<std::int64_t>(size_of(DType::packed_mxfp4));
  for (std::int64_t row = 0; row < rows.count; ++row) {
    const std::int64_t stored = rows.matrix * stack.blocks.shape[1] + rows.first + row * rows.step;
    for (std::int64_t g = 0; g < groups; ++g)
      write_group(DType::packed_mxfp4, group_at(stack, stored * groups + g),
                  blocks.raw() + (g * blocks.dim(1) + row / kBlockOutputs) * kBytes, row % kBlockOutputs);
  }
  return blocks;
}

}  // namespace switchyard
