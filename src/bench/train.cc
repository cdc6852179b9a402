// Whole training steps on synthetic tokens: data, forward, backward, gradient exchange, optimizer.
#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "bench/cases.h"
#include "bench/resident_memory.h"
#include "core/cores.h"
#include "data/dataset.h"
#include "train/step_cost.h"
#include "train/trainer.h"

namespace switchyard::bench {
namespace {

// A mixtral of 140 M parameters.
const std::vector<std::string> kModel{
    "decoder_block=mixtral", "base_emb_dim=512",  "base_num_decoder_layers=8", "num_experts=8",
    "num_experts_per_tok=2", "base_mlp_dim=1024", "base_moe_mlp_dim=1024",     "base_num_query_heads=8",
    "base_num_kv_heads=4",   "head_dim=64",       "vocab_size=32000"};
const std::vector<std::string> kRun{"per_device_batch_size=4", "max_target_length=1024", "dtype=bfloat16",
                                    "weight_dtype=bfloat16",   "opt_type=adamw",         "steps=1000",
                                    "dataset_type=synthetic"};

std::string key_of(const std::string& setting) {
  return setting.substr(0, setting.find('='));
}

// The settings, on top of the run above, and of the model above where they name no other.
Config config_of(const std::vector<std::string>& settings) {
  std::set<std::string> given;
  bool other_model = false;
  for (const std::string& setting : settings) {
    given.insert(key_of(setting));
    other_model |= setting.find('=') == std::string::npos || setting.starts_with("model_name=");
  }
  std::vector<std::string> all = settings;
  const auto add = [&](const std::vector<std::string>& defaults) {
    for (const std::string& setting : defaults) {
      if (!given.contains(key_of(setting))) all.push_back(setting);
    }
  };
  if (!other_model) add(kModel);
  add(kRun);
  Config config = Config::from_args(all);
  if (config.get_string("dataset_type") != "synthetic")
    fail_usage("[bench] train dataset_type={}: expected synthetic", config.get_string("dataset_type"));
  return config;
}

struct Steps {
  std::vector<double> seconds;
  std::map<std::string, double> phases;
  double loss = 0;
};

// Rank 0 says after each step whether another follows: at least three, at most `steps`.
void run_steps(Context& context, Trainer& trainer, Dataset& data, double budget, std::int64_t most,
               std::atomic<bool>& more, Steps& steps) {
  const bool first = context.comm->rank() == 0;
  const Group world = everyone(*context.comm);
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
    context.comm->barrier(world, "world");
    const bool go_on = more;
    context.comm->barrier(world, "world");
    if (!go_on) break;
  }
  if (!first) return;
  for (const auto& [phase, seconds] : trainer.timer().totals())
    steps.phases[phase] = seconds / static_cast<double>(steps.seconds.size());
}

Measurement measure_train(const Bench& bench, const Config& config) {
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  const TrainConfig training = train_config(config, model, mesh.axis_size("stage"));
  const BatchSizes sizes = batch_sizes(config, mesh);
  const auto specs = parameter_specs(model);
  Steps steps;
  std::atomic<bool> more{true};
  reset_peak_resident();
  reset_memory_peak();
  run_session(config, mesh, [&](Context& context) {
    Trainer trainer(
        context, model, training,
        Parameters::create(context, stage_specs(specs, context.stage, model), model.init_seed, {}, nullptr));
    const auto data = make_synthetic(sizes.step, sizes.sequence, model.vocab);
    run_steps(context, trainer, *data, bench.budget, config.get_int("steps"), more, steps);
  });
  const double tokens = static_cast<double>(sizes.step * sizes.sequence);
  Measurement m;
  m.name = "train";
  m.shape = {{"model", model.name == "default" ? config.get_string("decoder_block") : model.name},
             {"parameters", parameter_count(specs)},
             {"batch", sizes.step},
             {"seq", sizes.sequence},
             {"ranks", mesh.size()}};
  m.dtype = model.dtype;
  m.threads = std::max(usable_cores(), mesh.size());
  m.direction = "fwd+bwd";
  m.time = timing_of(steps.seconds);
  m.flops = train_flops_per_token(model, sizes.sequence) * tokens;
  // Weights and two moments, read and written once.
  m.bytes =
      6.0 * static_cast<double>(parameter_count(specs)) * static_cast<double>(size_of(model.weight_dtype));
  m.more = {{"tokens_per_s", tokens / m.time.seconds},
            {"loss", steps.loss},
            {"peak_tensor_bytes", memory_peak()},
            {"peak_resident_bytes", peak_resident_bytes()},
            {"phase_seconds", steps.phases}};
  return m;
}

}  // namespace

std::vector<Key> train_keys() {
  return {};
}

std::vector<Job> train_jobs(const Keys& keys) {
  const Config config = config_of(keys.config_settings());
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
