#include "kernels/loss/embedding.h"

#include <cstring>

#include "kernels/loss/kernels.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

void look_up(ThreadPool& pool, const EmbeddingLookupArgs& args) {
  const std::size_t row = static_cast<std::size_t>(args.table.dim(1)) * size_of(args.table.dtype());
  const auto* const ids = args.ids.kernel_data<std::int32_t>();
  const std::byte* const table = args.table.kernel_address();
  std::byte* const out = args.out.kernel_address();
  pool.for_range(args.ids.size(), 32, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      std::byte* const to = out + static_cast<std::size_t>(t) * row;
      const std::int64_t at = ids[t] - args.first_id;
      if (at >= 0 && at < args.table.dim(0))
        std::memcpy(to, table + static_cast<std::size_t>(at) * row, row);
      else
        std::memset(to, 0, row);
    }
  });
}

void add_token_by_token(ThreadPool& pool, const EmbeddingBackwardArgs& args) {
  const auto* const ids = args.ids.kernel_data<std::int32_t>();
  const std::int64_t tokens = args.ids.size();
  const TensorView dout = args.dout.reshaped({tokens, args.dtable.dim(1)});
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t at = ids[t] - args.first_id;
    if (at < 0 || at >= args.dtable.dim(0)) continue;
    const TensorView row = args.dtable.rows(at, at + 1);
    add(pool, row, dout.rows(t, t + 1), row);
  }
}

Work lookup_work(const EmbeddingLookupArgs& args) {
  return {.dtype = args.out.dtype(),
          .bytes = 2 * static_cast<double>(args.out.bytes()) + static_cast<double>(args.ids.bytes())};
}

Work backward_work(const EmbeddingBackwardArgs& args) {
  const double elements = static_cast<double>(args.dout.size());
  return {.dtype = args.dout.dtype(),
          .flops = elements,
          .bytes = static_cast<double>(args.dout.bytes() + args.ids.bytes()) + 2 * sizeof(float) * elements};
}

constexpr Implementation<EmbeddingLookupArgs> kLookups[] = {{"cuda", Gpu::any, gpu::embedding_lookup},
                                                            {"portable", Isa::ref, look_up}};
constexpr Implementation<EmbeddingBackwardArgs> kEmbeddingBackwards[] = {
    {"cuda", Gpu::any, gpu::embedding_backward}, {"portable", Isa::ref, add_token_by_token}};
constexpr Kernel<EmbeddingLookupArgs> kLookup{"embedding_lookup", lookup_work, &EmbeddingLookupArgs::out,
                                              kLookups};
constexpr Kernel<EmbeddingBackwardArgs> kEmbeddingBackward{
    "embedding_backward", backward_work, &EmbeddingBackwardArgs::dtable, kEmbeddingBackwards};

// `rows`: what is looked up, or its gradient.
void check_embedding(const char* op, const TensorView& table, const TensorView& ids, const TensorView& rows) {
  CHECK(table.rank() == 2 && ids.dtype() == DType::i32 && rows.size() == ids.size() * table.dim(1) &&
            table.is_contiguous() && ids.is_contiguous() && rows.is_contiguous(),
        "[{}] table {}, ids {} {}, rows {}", op, to_string(table.shape()), name_of(ids.dtype()),
        to_string(ids.shape()), to_string(rows.shape()));
}

}  // namespace

void embedding_lookup(ThreadPool& pool, const EmbeddingLookupArgs& args) {
  check_embedding("embedding_lookup", args.table, args.ids, args.out);
  CHECK(args.out.dtype() == args.table.dtype(), "[embedding_lookup] {} of a table of {}",
        name_of(args.out.dtype()), name_of(args.table.dtype()));
  run(pool, kLookup, args);
}

void embedding_backward(ThreadPool& pool, const EmbeddingBackwardArgs& args) {
  check_embedding("embedding_backward", args.dtable, args.ids, args.dout);
  CHECK(args.dtable.dtype() == DType::f32 && is_float(args.dout.dtype()),
        "[embedding_backward] {} into a table of {}", name_of(args.dout.dtype()),
        name_of(args.dtable.dtype()));
  run(pool, kEmbeddingBackward, args);
}

}  // namespace switchyard
