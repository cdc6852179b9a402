// Random tensors for benchmarks.
#pragma once

#include "bench/measure.h"
#include "core/tensor.h"
#include "core/thread_pool.h"

namespace switchyard::bench {

// Uniform in (-scale, scale), f32 or bf16; does not depend on the number of threads. Fast rather than good.
Tensor random_tensor(ThreadPool& pool, DType dtype, const Shape& shape, std::uint32_t seed, float scale = 1);

// A random tensor on the bench's device.
Tensor random_tensor(const Bench& bench, DType dtype, const Shape& shape, std::uint32_t seed,
                     float scale = 1);

}  // namespace switchyard::bench
