// The numbers of rows that both backward kernels of Hopper need.
#pragma once

#include "kernels/attention/cuda/hopper_parts.h"

namespace switchyard::gpu::hopper {

// Numbers of each row of queries, [B,N,padded]: lse in powers of two, and delta = <dout, out>. Rows past the
// end, and those that see no key, have an lse of infinity, which makes their weights 0.
struct RowNumbers {
  const float *lse, *delta;
  std::int64_t padded;  // rows of a head, a multiple of a tile's
};

// A warp takes a row. Sets `cleared` numbers of `counts` to 0, too.
static GPU_KERNEL find_row_numbers(AttentionSpec a, const bfloat16* dout, const bfloat16* out,
                                   const float* lse, std::int64_t padded, float* power_lse, float* delta,
                                   std::int32_t* counts, std::int64_t cleared) {
  const std::int64_t first = block_index() * thread_count() + thread_index();
  for (std::int64_t i = first; i < cleared; i += block_count() * thread_count()) counts[i] = 0;
  const std::int64_t of_all = first / kWarp;
  if (of_all >= a.batch * a.heads * padded) return;
  // Neighbours are the heads of a row, which lie side by side.
  const std::int64_t head = of_all % a.heads, row = of_all / a.heads % padded,
                     batch = of_all / a.heads / padded, to = (batch * a.heads + head) * padded + row;
  const int lane = thread_index() % kWarp;
  if (row >= a.q_length) {
    if (lane == 0) power_lse[to] = INFINITY, delta[to] = 0;
    return;
  }
  const std::int64_t at = ((batch * a.q_length + row) * a.heads + head) * a.v_dim;
  float sum = 0;
  for (std::int64_t d = lane; d < a.v_dim; d += kWarp) sum += to_float(dout[at + d]) * to_float(out[at + d]);
  sum = warp_sum(sum);
  if (lane != 0) return;
  const float of_row = lse[(batch * a.heads + head) * a.q_length + row];
  power_lse[to] = of_row == -INFINITY ? INFINITY : of_row * kLog2e;
  delta[to] = sum;
}

class RowNumberMemory {
 public:
  // Also sets `cleared` numbers of `counts` to 0.
  RowNumberMemory(const AttentionBackwardArgs& args, const AttentionProblem& p, std::int32_t* counts,
                  std::int64_t cleared)
      : padded_(divide_up(p.args.q_length, 2 * kGroupRows) * 2 * kGroupRows),
        count_(p.args.batch * p.args.heads * padded_),
        memory_(args.dq, static_cast<std::size_t>(2 * count_) * sizeof(float)) {
    constexpr int kThreads = 256;
    launch({.blocks = divide_up(std::max<std::int64_t>(count_ * kWarp, 1), kThreads), .threads = kThreads},
           find_row_numbers, p.args, static_cast<const bfloat16*>(p.dout),
           static_cast<const bfloat16*>(p.out), p.lse, padded_, memory_.data<float>(),
           memory_.data<float>() + count_, counts, cleared);
  }
  RowNumbers get() const { return {memory_.data<float>(), memory_.data<float>() + count_, padded_}; }

 private:
  const std::int64_t padded_, count_;
  const Workspace memory_;
};

}  // namespace switchyard::gpu::hopper

namespace switchyard::gpu {

// dq alone, by tiles of queries, of heads up to 256 wide.
void hopper_query_gradients(const AttentionBackwardArgs& args, const AttentionProblem& p,
                            const hopper::RowNumbers& numbers);

}  // namespace switchyard::gpu
