#include "kernels/cuda/portable.h"
#include "kernels/pointwise/rank_sum.h"

namespace switchyard::gpu {
namespace {

constexpr int kThreads = 256, kInputsAtOnce = 64;

struct Inputs {
  const void* at[kInputsAtOnce];
  int count;
};

template <typename Sum, typename T>
GPU_FUNCTION Sum widened(T x) {
  if constexpr (sizeof(T) == 2)
    return to_float(x);
  else
    return static_cast<Sum>(x);
}

template <typename Out, typename Sum>
GPU_FUNCTION Out rounded(Sum x) {
  if constexpr (sizeof(Out) == 2)
    return from_float<Out>(x);
  else
    return static_cast<Out>(x);
}

template <typename T, typename Sum, typename Out>
GPU_KERNEL add_up(Inputs inputs, std::int64_t begin, std::int64_t run, std::int64_t stride,
                  std::int64_t count, Out* out) {
  const std::int64_t i = block_index() * thread_count() + thread_index();
  if (i >= count) return;
  const std::int64_t from = begin + i / run * stride + i % run;
  Sum sum = widened<Sum>(static_cast<const T*>(inputs.at[0])[from]);
  for (int k = 1; k < inputs.count; ++k) sum += widened<Sum>(static_cast<const T*>(inputs.at[k])[from]);
  out[i] = rounded<Out>(sum);
}

template <typename T, typename Sum, typename Out>
void run(const RankSum& s) {
  Inputs inputs{};
  CHECK(s.inputs.size() <= kInputsAtOnce, "a sum over {} ranks of one GPU", s.inputs.size());
  for (const void* input : s.inputs) inputs.at[inputs.count++] = input;
  launch({.blocks = divide_up(s.count, kThreads), .threads = kThreads}, add_up<T, Sum, Out>, inputs, s.begin,
         s.run, s.stride, s.count, static_cast<Out*>(s.out));
}

}  // namespace

void sum_in_order(const RankSum& s) {
  if (s.type == "float32") return run<float, float, float>(s);
  if (s.type == "bfloat16") return run<bfloat16, float, bfloat16>(s);
  if (s.type == "bfloat16 as float32") return run<bfloat16, float, float>(s);
  if (s.type == "float64") return run<double, double, double>(s);
  CHECK(s.type == "int32", "{}", s.type);
  run<std::int32_t, std::int64_t, std::int32_t>(s);
}

}  // namespace switchyard::gpu
