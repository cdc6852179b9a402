// Numbers to compute with.
#pragma once

#include "bench/measure.h"
#include "core/tensor.h"
#include "core/thread_pool.h"

namespace switchyard::bench {

// Uniform in (-scale, scale), the same for any number of threads; dtype f32 or bf16. Fast rather than good.
Tensor random_tensor(ThreadPool& pool, DType dtype, const Shape& shape, std::uint32_t seed, float scale = 1);

// The same on a bench's device.
Tensor random_tensor(const Bench& bench, DType dtype, const Shape& shape, std::uint32_t seed,
                     float scale = 1);

}  // namespace switchyard::bench
