#include "kernels/attention/merge_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "kernels/attention/checks.h"
#include "kernels/attention/kernels.h"
#include "kernels/pointwise/float_elements.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

void merge_rows(ThreadPool& pool, const MergeAttentionArgs& args) {
  constexpr std::int64_t kTokensOfPiece = 16;
  const std::int64_t length = args.out.dim(1), heads = args.out.dim(2), width = args.out.dim(3),
                     tokens = args.out.dim(0) * length;
  float* const lse = args.lse.kernel_data<float>();
  const float* const other_lse = args.other_lse.kernel_data<float>();
  with_elements(args.out.dtype(), [&]<typename T>(T) {
    T* const out = args.out.kernel_data<T>();
    const T* const other = args.other_out.kernel_data<T>();
    pool.for_range(tokens, kTokensOfPiece, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin * heads; row < end * heads; ++row) {
        const std::int64_t token = row / heads,
                           at = (token / length * heads + row % heads) * length + token % length;
        const float first = lse[at], second = other_lse[at], larger = std::max(first, second);
        if (larger == -std::numeric_limits<float>::infinity()) continue;  // neither has keys
        const float of_first = std::exp(first - larger), of_second = std::exp(second - larger),
                    sum = of_first + of_second;
        lse[at] = larger + std::log(sum);
        for (std::int64_t d = row * width; d < (row + 1) * width; ++d)
          out[d] = static_cast<T>(
              (static_cast<float>(out[d]) * of_first + static_cast<float>(other[d]) * of_second) / sum);
      }
    });
  });
}

Work work_of(const MergeAttentionArgs& args) {
  return {.dtype = args.out.dtype(),
          .flops = 4 * static_cast<double>(args.out.size()),
          .bytes = 3 * static_cast<double>(args.out.bytes() + args.lse.bytes())};
}

constexpr Implementation<MergeAttentionArgs> kMerges[] = {{"cuda", Gpu::any, gpu::merge_attention},
                                                          {"portable", Isa::ref, merge_rows}};
constexpr Kernel<MergeAttentionArgs> kMergeAttention{"merge_attention", work_of, &MergeAttentionArgs::out,
                                                     kMerges};

}  // namespace

void merge_attention(ThreadPool& pool, const MergeAttentionArgs& args) {
  constexpr const char* kOp = "merge_attention";
  const TensorView& out = args.out;
  CHECK(out.rank() == 4 && is_float(out.dtype()) && out.is_contiguous(), "[{}] out {} of {}", kOp,
        to_string(out.shape()), name_of(out.dtype()));
  const Shape rows{out.dim(0), out.dim(2), out.dim(1)};
  check_view(kOp, "other_out", args.other_out, out.dtype(), out.shape());
  check_view(kOp, "lse", args.lse, DType::f32, rows);
  check_view(kOp, "other_lse", args.other_lse, DType::f32, rows);
  run(pool, kMergeAttention, args);
}

}  // namespace switchyard
