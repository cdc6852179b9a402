#include "kernels/pointwise/rank_sum.h"

#include "core/error.h"
#include "kernels/registry/simd_rows.h"

namespace switchyard {
namespace {

constexpr InnerImplementation<RankSumKernel, RankSumProblem> kRankSum[] = {SWITCHYARD_SIMD_INNER(rank_sum)};

}  // namespace

void rank_sum(DType dtype, std::span<const void* const> inputs, DType out_dtype, void* out,
              std::int64_t count) {
  CHECK(!inputs.empty() && is_float(dtype) && (out_dtype == dtype || out_dtype == DType::f32),
        "sum of {} arrays of {} in {}", inputs.size(), name_of(dtype), name_of(out_dtype));
  const RankSumProblem problem{dtype, inputs, out_dtype, out, 0, count};
  choose("rank_sum", kRankSum, problem)(problem);
}

}  // namespace switchyard
