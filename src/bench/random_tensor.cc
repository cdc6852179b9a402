#include "bench/random_tensor.h"

namespace switchyard::bench {
namespace {

float mixed(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  return static_cast<float>(static_cast<std::int32_t>(x & 0xffffffffu)) * 0x1p-31f;
}

template <typename T>
void fill(ThreadPool& pool, std::span<T> out, std::uint32_t seed, float scale) {
  const std::uint64_t first = (std::uint64_t{seed} + 1) << 40;
  pool.for_range(static_cast<std::int64_t>(out.size()), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      out[static_cast<std::size_t>(i)] = T(scale * mixed(first + static_cast<std::uint64_t>(i)));
  });
}

}  // namespace

Tensor random_tensor(ThreadPool& pool, DType dtype, const Shape& shape, std::uint32_t seed, float scale) {
  Tensor t(dtype, shape);
  if (dtype == DType::bf16)
    fill(pool, t.span<bfloat16>(), seed, scale);
  else
    fill(pool, t.span<float>(), seed, scale);
  return t;
}

Tensor random_tensor(const Bench& bench, DType dtype, const Shape& shape, std::uint32_t seed, float scale) {
  return to_device(bench.memory, random_tensor(bench.pool, dtype, shape, seed, scale));
}

}  // namespace switchyard::bench
