// Measures whole training steps on synthetic tokens: data, forward, backward, gradient exchange, optimizer.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>

#include "bench/cases.h"
#include "bench/gpu_work.h"
#include "bench/model_run.h"
#include "core/cores.h"
#include "core/resident_memory.h"
#include "data/dataset.h"
#include "engine/model.h"
#include "train/step_cost.h"
#include "train/trainer.h"

namespace switchyard::bench {
namespace {

struct Steps {
  std::vector<double> seconds;
  std::map<std::string, double> phases;
  double loss = 0;
  GpuWork gpu;
};

// Rank 0 says after each step whether another follows: at least three, at most `steps`.
void run_steps(Context& context, Trainer& trainer, Dataset& data, double budget, std::int64_t most,
               std::atomic<bool>& more, Steps& steps) {
  const bool first = context.comm->rank() == 0;
  const ProcessGroup world = everyone(*context.comm, "world");
  const Batch batch = data.read(0, data.rows());
  trainer.step(0, batch);
  trainer.timer().reset();
  const double begin = now();
  for (std::int64_t step = 1;; ++step) {
    const double start = now();
    const StepResult result = trainer.step(step, batch);
    if (first) {
      steps.seconds.push_back(now() - start);
      steps.loss = result.loss;
      more = step < most && (now() - begin < budget || step < 3);
    }
    context.comm->barrier(world);
    const bool go_on = more;
    context.comm->barrier(world);
    if (!go_on) break;
  }
  if (first) {
    for (const auto& [phase, seconds] : trainer.timer().totals())
      steps.phases[phase] = seconds / static_cast<double>(steps.seconds.size());
  }
  GpuWork gpu = count_gpu_work(context, 1, [&] { trainer.step(most, batch); });
  if (first) steps.gpu = std::move(gpu);
}

// For people: the share of the card's product peak. None where it was not measured.
std::vector<std::string> training_shares(const Measurement& m, const Peaks& peaks) {
  if (!peaks.measured()) return {};
  const double rate = m.flops / m.time.seconds;
  return {fmt::format(
      "{:.2f} TFLOP of the model a step: {:.1f} TFLOP/s, {:.1f}% of the product peak of {:.1f}",
      m.flops * 1e-12, rate * 1e-12, 100 * rate / peaks.flops_of(m.dtype), peaks.flops_of(m.dtype) * 1e-12)};
}

Measurement measure_train(const Bench& bench, const Config& config) {
  const ModelOnRanks ranks(ModelOnMesh(config, ModelUse::train));
  const ModelConfig& model = ranks.model;
  const TrainConfig training = train_config(config, model, ranks.mesh.axis_size("stage"));
  const BatchSizes sizes = batch_sizes(config, ranks.mesh);
  Steps steps;
  std::atomic<bool> more{true};
  reset_peak_resident();
  reset_memory_peak();
  ranks.run([&](Context& context) {
    Trainer trainer(context, model, training, ranks.load(context));
    const auto data = make_synthetic(sizes.step, sizes.sequence, model.vocab);
    run_steps(context, trainer, *data, bench.budget, config.get_int("steps"), more, steps);
  });
  const double tokens = static_cast<double>(sizes.step * sizes.sequence);
  Measurement m;
  m.name = "train";
  m.shape = {{"model", model_label(config)},
             {"parameters", parameter_count(ranks.specs)},
             {"batch", sizes.step},
             {"seq", sizes.sequence},
             {"ranks", ranks.mesh.size()}};
  m.dtype = model.dtype;
  m.threads = usable_cores();
  m.direction = "fwd+bwd";
  m.time = timing_of(steps.seconds);
  m.flops = train_flops_per_token(model, sizes.sequence) * tokens;
  // Weights and two moments, read and written once.
  m.bytes = 6.0 * static_cast<double>(parameter_count(ranks.specs)) *
            static_cast<double>(size_of(model.weight_dtype));
  m.more = {{"tokens_per_s", tokens / m.time.seconds},
            {"loss", steps.loss},
            {"peak_tensor_bytes", memory_peak()},
            {"peak_resident_bytes", peak_resident_bytes()},
            {"phase_seconds", steps.phases}};
  m.more.update(json_of(steps.gpu));
  m.lines = training_shares(m, bench.peaks);
  std::ranges::move(lines_of(steps.gpu), std::back_inserter(m.lines));
  return m;
}

}  // namespace

std::vector<Key> train_keys() {
  return {};
}

std::vector<Job> train_jobs(const Keys& keys) {
  const Config config = model_run_config("train", keys.config_settings());
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  train_config(config, model, mesh.axis_size("stage"));
  const BatchSizes sizes = batch_sizes(config, mesh);
  check_layout(config, mesh, model, sizes);
  // Weights, gradients and two moments; what activations take is not foretold here.
  const double bytes = 8.0 * static_cast<double>(parameter_count(parameter_specs(model)));
  return {{"train", bytes, [config](Bench& bench) { return std::vector{measure_train(bench, config)}; },
           config.notices()}};
}

}  // namespace switchyard::bench
