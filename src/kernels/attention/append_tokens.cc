#include "kernels/attention/append_tokens.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/attention/int8_vectors.h"
#include "kernels/attention/kernels.h"
#include "kernels/pointwise/strided_copy.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

// [1,tokens,heads,D] or [1,tokens,heads] without its first dim.
TensorView of_one_slot(const TensorView& x) {
  Shape shape, strides;
  for (std::size_t i = 1; i < x.rank(); ++i) {
    shape.push_back(x.dim(i));
    strides.push_back(x.stride(i));
  }
  return x.block(0, shape, strides);
}

void row_by_row(ThreadPool& pool, const AppendTokensArgs& args) {
  for (std::int64_t from = 0; from < std::ssize(args.rows); ++from) {
    const AppendedRow& row = args.rows[static_cast<std::size_t>(from)];
    if (row.slot < 0 || row.tokens == 0) continue;
    const auto in_slot = [&](const TensorView& x) {
      return x.rows(row.slot, row.slot + 1).slice(1, row.at, row.tokens);
    };
    const TensorView x = args.x.rows(from, from + 1).slice(1, 0, row.tokens), values = in_slot(args.values);
    if (args.scales.defined())
      to_int8(
          pool,
          {.x = of_one_slot(x), .values = of_one_slot(values), .scales = of_one_slot(in_slot(args.scales))});
    else
      strided_copy(pool, x, values);
  }
}

Work work_of(const AppendTokensArgs& args) {
  return {.dtype = args.x.dtype(), .flops = 0, .bytes = 2 * static_cast<double>(args.x.bytes())};
}

constexpr Implementation<AppendTokensArgs> kRows[] = {{"cuda", Gpu::any, gpu::append_tokens},
                                                      {"portable", Isa::ref, row_by_row}};
constexpr Kernel<AppendTokensArgs> kAppendTokens{"append_tokens", work_of, &AppendTokensArgs::x, kRows};

}  // namespace

void append_tokens(ThreadPool& pool, const AppendTokensArgs& args) {
  const TensorView &x = args.x, &values = args.values, &scales = args.scales;
  const DType dtype = scales.defined() ? DType::i8 : x.dtype();
  CHECK(x.rank() == 4 && is_float(x.dtype()) && x.stride(3) == 1 && values.rank() == 4 &&
            values.stride(3) == 1 && values.dtype() == dtype && values.dim(2) == x.dim(2) &&
            values.dim(3) == x.dim(3) && std::ssize(args.rows) == x.dim(0),
        "[append_tokens] x {} of {}, values {} of {}, {} rows", to_string(x.shape()), name_of(x.dtype()),
        to_string(values.shape()), name_of(values.dtype()), args.rows.size());
  CHECK(!scales.defined() || (scales.dtype() == DType::f32 &&
                              scales.shape() == Shape({values.dim(0), values.dim(1), values.dim(2)})),
        "[append_tokens] scales {} of {}", to_string(scales.shape()), name_of(scales.dtype()));
  for (const AppendedRow& row : args.rows)
    CHECK(row.slot < 0 || (row.slot < values.dim(0) && row.at >= 0 && row.tokens >= 0 &&
                           row.tokens <= x.dim(1) && row.at + row.tokens <= values.dim(1)),
          "[append_tokens] {} tokens at {} of slot {}", row.tokens, row.at, row.slot);
  run(pool, kAppendTokens, args);
}

}  // namespace switchyard
