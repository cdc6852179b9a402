#include "kernels/pointwise/random_values.h"

#include <algorithm>
#include <vector>

#include "core/box.h"
#include "kernels/pointwise/random_values_kernel.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

// Neighbours both in the array and in the block.
struct Piece {
  std::int64_t in_array, in_block, count;
};
constexpr std::int64_t kMostInPiece = 1 << 16;

std::vector<Piece> pieces_of(const RandomValuesArgs& args) {
  std::vector<Piece> pieces;
  for_runs(args.whole, {args.start, args.to.shape()},
           [&](std::int64_t in_array, std::int64_t in_block, std::int64_t count) {
             for (std::int64_t i = 0; i < count; i += kMostInPiece)
               pieces.push_back({in_array + i, in_block + i, std::min(kMostInPiece, count - i)});
           });
  return pieces;
}

// An element depends on nothing but its index, so cores share the pieces.
void piece_by_piece(ThreadPool& pool, const RandomValuesArgs& args) {
  const std::vector<Piece> pieces = pieces_of(args);
  const bool is_f32 = args.to.dtype() == DType::f32;
  std::byte* const to = args.to.kernel_address();
  pool.for_range(std::ssize(pieces), 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(kMostInPiece);
    for (std::int64_t p = begin; p < end; ++p) {
      const Piece& piece = pieces[static_cast<std::size_t>(p)];
      const std::span<float> drawn(values.data(), static_cast<std::size_t>(piece.count));
      if (args.range) {
        rng_fill_normal(args.key, static_cast<std::uint64_t>(piece.in_array), *args.range, drawn);
        for (float& v : drawn) v *= args.factor;
      } else {
        std::fill(drawn.begin(), drawn.end(), args.factor);
      }
      if (is_f32)
        std::copy(drawn.begin(), drawn.end(), reinterpret_cast<float*>(to) + piece.in_block);
      else
        std::transform(drawn.begin(), drawn.end(), reinterpret_cast<bfloat16*>(to) + piece.in_block,
                       [](float v) { return bfloat16(v); });
    }
  });
}

// A normal number takes the cipher's rounds and a polynomial.
Work work_of(const RandomValuesArgs& args) {
  constexpr double kPerNormal = 40;
  return {.dtype = args.to.dtype(),
          .flops = args.range ? kPerNormal * static_cast<double>(args.to.size()) : 0,
          .bytes = static_cast<double>(args.to.bytes())};
}

constexpr Implementation<RandomValuesArgs> kRandomValuesRows[] = {{"cuda", Gpu::any, gpu::random_values},
                                                                  {"portable", Isa::ref, piece_by_piece}};
constexpr Kernel<RandomValuesArgs> kRandomValues{"random_values", work_of, &RandomValuesArgs::to,
                                                 kRandomValuesRows};

}  // namespace

void random_values(ThreadPool& pool, const RandomValuesArgs& args) {
  const TensorView& to = args.to;
  CHECK(is_float(to.dtype()) && to.is_contiguous() && inside({args.start, to.shape()}, args.whole),
        "[random_values] {} {} at {} of {}", name_of(to.dtype()), to_string(to.shape()),
        to_string(args.start), to_string(args.whole));
  run(pool, kRandomValues, args);
}

}  // namespace switchyard
