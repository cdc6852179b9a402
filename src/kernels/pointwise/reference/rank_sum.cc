// The scalar truth of sums over ranks.
#include "kernels/pointwise/rank_sum.h"

#include "kernels/pointwise/reference/elementwise_access.h"

namespace switchyard::ref {

void rank_sum(const RankSumProblem& p) {
  for (std::int64_t i = p.begin; i < p.end; ++i) {
    float sum = at(p.inputs[0], p.dtype, i);
    for (const void* input : p.inputs.subspan(1)) sum += at(input, p.dtype, i);
    put(p.out, p.out_dtype, i, sum);
  }
}

}  // namespace switchyard::ref
