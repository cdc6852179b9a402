// Measures a GPU's peaks: the highest rates that our own kernels and copies reach.
#include <algorithm>

#include "bench/peak.h"
#include "bench/random_tensor.h"
#include "core/error.h"
#include "core/gpu.h"
#include "kernels/product/gemm.h"

namespace switchyard::bench {
namespace {

Measurement measure_product(const Bench& bench, DType dtype, std::int64_t size) {
  const Tensor a = random_tensor(bench, dtype, {size, size}, 1),
               b = random_tensor(bench, dtype, {size, size}, 2), c = bench.memory.empty(dtype, {size, size});
  Measurement m;
  m.name = "peak";
  m.shape = {{"product", size}};
  m.dtype = dtype;
  m.flops = 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
  m.bytes = 3 * static_cast<double>(a.bytes());
  m.time = time_rounds(bench, [&] { gemm(bench.pool, {.a = a.view(), .b = b.view(), .c = c.view()}); });
  return m;
}

Measurement measure_copy(const Bench& bench, std::int64_t bytes) {
  const Tensor from = bench.memory.zeros(DType::u8, {bytes}), to = bench.memory.zeros(DType::u8, {bytes});
  Measurement m;
  m.name = "peak";
  m.shape = {{"copy", bytes}};
  m.dtype = DType::bf16;
  m.bytes = 2.0 * static_cast<double>(bytes);
  m.time = time_rounds(bench, [&] { copy(from.view(), to.view()); });
  return m;
}

}  // namespace

PeakReport measure_gpu_peaks(ThreadPool& pool, double budget, std::optional<std::size_t> copy_bytes) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  const auto memory = static_cast<std::int64_t>(gpu::properties().memory_bytes);
  const std::int64_t most_copied = memory / 4;
  if (copy_bytes && static_cast<std::int64_t>(*copy_bytes) > most_copied)
    fail_usage("[bench] copy_mib={}: expected at most {}, a quarter of the GPU's memory", *copy_bytes >> 20,
               most_copied >> 20);
  const std::int64_t copied =
      copy_bytes ? static_cast<std::int64_t>(*copy_bytes) : std::min(2 * kGiB, most_copied);
  const std::int64_t product = memory < 4 * kGiB ? 4096 : 8192;
  const Bench bench{pool, budget, {}, Memory(Device::cuda(), nullptr)};
  PeakReport report;
  report.results = {measure_product(bench, DType::bf16, product), measure_product(bench, DType::f32, 4096),
                    measure_copy(bench, copied)};
  const auto& [bf16, f32, copying] = std::tie(report.results[0], report.results[1], report.results[2]);
  const double bandwidth = copying.bytes / copying.time.seconds;
  report.peaks = {bf16.flops / bf16.time.seconds, f32.flops / f32.time.seconds, bandwidth, bandwidth,
                  bandwidth};
  return report;
}

std::string gpu_name() {
  const gpu::Properties p = gpu::properties();
  return fmt::format("{}, {} multiprocessors, {} GiB, CUDA {}.{}", p.name, p.multiprocessors,
                     p.memory_bytes >> 30, p.runtime_version / 1000, p.runtime_version % 1000 / 10);
}

}  // namespace switchyard::bench
