// QK-clip (Kimi K2): the largest attention score of each head, and weights made smaller head by head.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// largest[n] = the largest of top[b, n, s] over b and s; -inf where there is none. top [B,N,S] f32 as
// attention() gives it, largest [N] f32. Views have no gaps.
void largest_scores(ThreadPool& pool, const TensorView& top, const TensorView& largest);

// x[i] *= factors[(first + i) % F], in f32, where x, f32 or bf16 [count], is a flat range from element
// `first` on of a weight [.., heads, width], and factors [F] f32 are those of its heads * width columns.
// Views have no gaps.
struct ScaleColumnsArgs {
  TensorView x;
  std::int64_t first = 0;
  TensorView factors;
};
void scale_columns(ThreadPool& pool, const ScaleColumnsArgs& args);

}  // namespace switchyard
