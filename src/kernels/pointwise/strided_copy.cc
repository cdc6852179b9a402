#include "kernels/pointwise/strided_copy.h"

#include <algorithm>
#include <cstring>

#include "kernels/pointwise/kernels.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

struct Dim {
  std::int64_t size, from, to;  // strides in bytes
};
using Dims = InlineVector<Dim, kMostDims>;

// The dims that have more than one element, those merged that follow each other without a gap in both views.
// What is left innermost is the run that is copied at a time where both views have it as neighbours.
Dims merged(const TensorView& from, const TensorView& to) {
  const auto element = static_cast<std::int64_t>(size_of(from.dtype()));
  Dims dims;
  for (std::size_t i = 0; i < from.rank(); ++i) {
    const Dim dim{from.dim(i), from.stride(i) * element, to.stride(i) * element};
    if (dim.size == 1) continue;
    if (!dims.empty() && dims.back().from == dim.size * dim.from && dims.back().to == dim.size * dim.to)
      dims.back() = {dims.back().size * dim.size, dim.from, dim.to};
    else
      dims.push_back(dim);
  }
  return dims;
}

template <typename Element>
void copy_elements(std::byte* to, const std::byte* from, const Dim& dim) {
  for (std::int64_t i = 0; i < dim.size; ++i)
    *reinterpret_cast<Element*>(to + i * dim.to) = *reinterpret_cast<const Element*>(from + i * dim.from);
}

void copy_run(std::byte* to, const std::byte* from, const Dim& dim, std::int64_t element) {
  if (dim.from == element && dim.to == element)
    std::memcpy(to, from, static_cast<std::size_t>(dim.size * element));
  else if (element == 4)
    copy_elements<std::uint32_t>(to, from, dim);
  else if (element == 8)
    copy_elements<std::uint64_t>(to, from, dim);
  else if (element == 2)
    copy_elements<std::uint16_t>(to, from, dim);
  else if (element == 1)
    copy_elements<std::uint8_t>(to, from, dim);
  else  // blocks of packed weights
    for (std::int64_t i = 0; i < dim.size; ++i)
      std::memcpy(to + i * dim.to, from + i * dim.from, static_cast<std::size_t>(element));
}

void copy_runs(ThreadPool& pool, const StridedCopyArgs& args) {
  const TensorView &from = args.from, &to = args.to;
  if (from.size() == 0) return;
  const auto element = static_cast<std::int64_t>(size_of(from.dtype()));
  Dims outer = merged(from, to);
  if (outer.empty()) outer.push_back({1, element, element});
  const Dim inner = outer.back();
  outer.pop_back();
  std::int64_t runs = 1;
  for (const Dim& dim : outer) runs *= dim.size;
  constexpr std::int64_t kBytesAtOnce = 65536;
  const std::int64_t run_bytes = inner.size * element;
  // One long run is cut, many short ones are handed out together.
  const std::int64_t pieces = runs == 1 ? std::max<std::int64_t>(1, run_bytes / kBytesAtOnce) : 1;
  const std::int64_t piece = (inner.size + pieces - 1) / pieces;
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesAtOnce / std::max<std::int64_t>(1, run_bytes));
  const std::byte* const source = from.kernel_address();
  std::byte* const target = to.kernel_address();
  pool.for_range(runs * pieces, grain, [&](std::int64_t begin, std::int64_t end) {
    InlineVector<std::int64_t, kMostDims> index(outer.size());
    std::int64_t at_from = 0, at_to = 0, rest = begin / pieces;
    for (std::size_t d = outer.size(); d-- > 0; rest /= outer[d].size) {
      index[d] = rest % outer[d].size;
      at_from += index[d] * outer[d].from;
      at_to += index[d] * outer[d].to;
    }
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % pieces * piece, count = std::min(piece, inner.size - first);
      if (count > 0)
        copy_run(target + at_to + first * inner.to, source + at_from + first * inner.from,
                 {count, inner.from, inner.to}, element);
      if (pieces > 1) continue;  // of one run
      for (std::size_t d = outer.size(); d-- > 0;) {
        at_from += outer[d].from;
        at_to += outer[d].to;
        if (++index[d] < outer[d].size) break;
        at_from -= outer[d].size * outer[d].from;
        at_to -= outer[d].size * outer[d].to;
        index[d] = 0;
      }
    }
  });
}

Work work_of(const StridedCopyArgs& args) {
  return {.dtype = args.from.dtype(), .bytes = 2 * static_cast<double>(args.from.bytes())};
}

constexpr Implementation<StridedCopyArgs> kStridedCopyRows[] = {{"cuda", Gpu::any, gpu::strided_copy},
                                                                {"portable", Isa::ref, copy_runs}};
constexpr Kernel<StridedCopyArgs> kStridedCopy{"strided_copy", work_of, &StridedCopyArgs::to,
                                               kStridedCopyRows};

}  // namespace

void strided_copy(ThreadPool& pool, const TensorView& from, const TensorView& to) {
  CHECK(from.dtype() == to.dtype() && from.shape() == to.shape(), "[strided_copy] {} {} to {} {}",
        name_of(from.dtype()), to_string(from.shape()), name_of(to.dtype()), to_string(to.shape()));
  run(pool, kStridedCopy, {from, to});
}

}  // namespace switchyard
