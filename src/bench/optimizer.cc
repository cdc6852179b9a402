// Measures one AdamW update of many weights, which memory bandwidth limits.
#include "optim/optimizer.h"

#include "bench/cases.h"
#include "bench/random_tensor.h"

namespace switchyard::bench {
namespace {

const std::vector<std::string> kDtypes{"bf16", "f32"};

Measurement measure_optimizer(Bench& bench, std::int64_t count, DType dtype) {
  OptimizerConfig config;
  config.mu_dtype = dtype;
  const auto optimizer = Optimizer::make(config);
  const Tensor weight = random_tensor(bench, dtype, {count}, 1),
               grad = random_tensor(bench, dtype, {count}, 2, 0.01f);
  std::vector<Tensor> state = optimizer->init(bench.memory, dtype, count);
  Measurement m;
  m.name = "optimizer";
  m.shape = {{"weights", count}, {"optimizer", config.type}};
  m.dtype = dtype;
  m.threads = bench.pool.threads();
  m.bytes = static_cast<double>(2 * weight.bytes() + grad.bytes());
  for (const Tensor& moment : state) m.bytes += static_cast<double>(2 * moment.bytes());
  const Tensor squares = bench.memory.empty(DType::f64, {1});
  const OptimizerRange range{weight.view(), grad.view(), state, squares.view()};
  const Tensor numbers = numbers_in(bench.memory, {.adam = optimizer->terms_of(0, 1e-4)});
  m.time = time_rounds(bench, [&] { optimizer->update(bench.pool, numbers.view(), std::span(&range, 1)); });
  // Most of it is read and written in place, which may go faster than copying.
  m.more["fraction_of_update_in_place"] = share(m.bytes / m.time.seconds, bench.peaks.update_bytes);
  return m;
}

}  // namespace

std::vector<Key> optimizer_keys() {
  return {{"weights", "100000000", "weights to update"},
          {"dtype", "all", "of weights, gradients and moments: bf16, f32; or all"}};
}

std::vector<Job> optimizer_jobs(const Keys& keys) {
  std::vector<Job> jobs;
  const std::int64_t count = keys.integer("weights");
  for (const auto& word : keys.words("dtype", kDtypes)) {
    const DType dtype = parse_float_dtype(word, "dtype");
    jobs.push_back(
        {"optimizer " + word, 4.0 * static_cast<double>(count) * static_cast<double>(size_of(dtype)),
         [count, dtype](Bench& bench) { return std::vector{measure_optimizer(bench, count, dtype)}; }});
  }
  return jobs;
}

}  // namespace switchyard::bench
