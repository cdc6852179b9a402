// The sum over ranks of arrays that one GPU has, as collectives take it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace switchyard::gpu {

// out[i·run + j] = Σ over the inputs, in order, of input[begin + i·stride + j] for i·run + j < count. Types
// and rounding are those of sum_in_order (parallel/comm/reduce.h). The GPU has all arrays; at most 64 inputs.
struct RankSum {
  std::string_view type;
  std::span<const void* const> inputs;
  std::int64_t begin = 0, run = 0, stride = 0, count = 0;  // elements
  void* out = nullptr;
};
void sum_in_order(const RankSum& sum);

}  // namespace switchyard::gpu
