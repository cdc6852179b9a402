// Loss-free balance of experts (Wang et al. 2024, arXiv 2408.15664) where their loads are, so that the host
// need not read them. Views have no gaps.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// With load[e] = the sum over p of counts[p,e], and mean = their mean over the E experts, in double:
//   bias[e] += rate where load[e] < mean, -rate where load[e] > mean, each rounded to f32,
// as bias_increment (moe/balance.h) and an addition of f32 do. Nothing changes where `is_good` is 0.
struct RouterBiasArgs {
  TensorView counts;   // i32 [P,E]
  TensorView is_good;  // f32 [1]
  TensorView bias;     // f32 [n], updated: of the experts from `first` on
  std::int64_t first = 0;
  double rate = 0;
};
void update_router_bias(ThreadPool& pool, const RouterBiasArgs& args);

}  // namespace switchyard
