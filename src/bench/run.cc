#include "bench/run.h"

#include <fmt/format.h>

#include "bench/peak.h"
#include "core/cores.h"
#include "core/error.h"
#include "kernels/machine/machine.h"

namespace switchyard::bench {
namespace {

std::vector<Key> no_keys() {
  return {};
}

std::vector<Job> no_jobs(const Keys&) {
  return {};
}

const Case kCases[] = {
    {"peak", "products in registers, copy and read bandwidth, a core's caches", no_keys, no_jobs},
    {"gmm", "grouped products of the up projection and their gradients", gmm_keys, gmm_jobs, false, true},
    {"moe", "the whole MoE layer of one rank: router, sort, gather, experts, combine", moe_keys, moe_jobs,
     false, true},
    {"attention", "causal attention", attention_keys, attention_jobs, false, true},
    {"delta", "the gated delta rule of Qwen3-Next", gated_delta_keys, gated_delta_jobs, false, true},
    {"loss", "output projection with cross-entropy", loss_keys, loss_jobs, false, true},
    {"optimizer", "an AdamW update", optimizer_keys, optimizer_jobs, false, true},
    {"checkpoint", "a checkpoint written to the disk, against plain files", checkpoint_keys, checkpoint_jobs},
    {"sampling", "a next token of its logits, on one thread", sampling_keys, sampling_jobs, true},
    {"grammar", "masks of answers bound to a schema, on one thread", grammar_keys, grammar_jobs, true},
    {"comm", "collectives among ranks of one process", comm_keys, comm_jobs, true},
    {"train", "whole training steps: tokens a second", train_keys, train_jobs, true, false, true},
    {"generate", "reading a prompt, and token after token", generate_keys, generate_jobs, true, false, true},
};

constexpr double kGiB = 1 << 30;

// The size of an array for measuring bandwidth: enough for every thread, and two must fit in memory.
std::size_t copy_bytes_of(const Keys& keys, int threads) {
  constexpr std::int64_t kLeastAThread = 64 << 10, kMebibyte = 1 << 20;
  const std::int64_t mib = keys.integer("copy_mib"),
                     least = (threads * kLeastAThread + kMebibyte - 1) / kMebibyte;
  if (mib < least)
    fail_usage("[bench] copy_mib={}: expected at least {} for {} threads", mib, least, threads);
  const std::int64_t free = available_memory_bytes();
  if (free > 0 && 2 * mib * kMebibyte > free / 10 * 9)
    fail_usage("[bench] copy_mib={}: two arrays of that size do not fit into the {} MiB that are free", mib,
               free / kMebibyte);
  return static_cast<std::size_t>(mib * kMebibyte);
}

// False, and a line that says why, where the job does not fit.
bool fits(const Job& job, const std::function<void(const std::string&)>& line) {
  const auto free = static_cast<double>(available_memory_bytes());
  if (free <= 0 || job.memory_bytes < 0.9 * free) return true;
  line(fmt::format("skipped: {} takes {:.1f} GiB, {:.1f} GiB are free", job.label, job.memory_bytes / kGiB,
                   free / kGiB));
  return false;
}

}  // namespace

std::span<const Case> cases() {
  return kCases;
}

std::vector<Key> all_keys(const Case& chosen) {
  std::vector<Key> keys = chosen.keys();
  if (!chosen.own_threads)
    keys.push_back({"threads", std::to_string(usable_cores()), "threads to work with"});
  if (chosen.on_device) keys.push_back({"device", "cpu", "cpu, cuda or auto: where the work is done"});
  keys.push_back({"copy_mib", std::to_string(default_copy_bytes() >> 20),
                  "size of the arrays that bandwidth is measured with, in MiB"});
  return keys;
}

nlohmann::ordered_json run_case(const Case& chosen, std::span<const std::string> settings, double seconds,
                                const std::function<void(const std::string&)>& line) {
  const Keys keys(chosen.name, all_keys(chosen), settings, chosen.with_config);
  constexpr std::int64_t kMostThreads = 1024;
  if (!chosen.own_threads && keys.integer("threads") > kMostThreads)
    fail_usage("[bench] threads={}: expected at most {}", keys.integer("threads"), kMostThreads);
  const int threads = chosen.own_threads ? usable_cores() : static_cast<int>(keys.integer("threads"));
  const std::size_t copy_bytes = copy_bytes_of(keys, threads);
  const std::vector<Job> jobs = chosen.jobs(keys);

  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  Peaks peaks;
  const auto report = [&](const Measurement& m) {
    line(table_row(m, peaks));
    results.push_back(result_json(m, peaks));
  };
  Device& device = chosen.on_device ? Device::named(keys.text("device")) : Device::cpu();
  const bool on_gpu = device.kind() == DeviceKind::cuda;
  line(on_gpu ? gpu_name() : fmt::format("{}, {} threads", machine_name(), threads));
  line(table_header());
  ThreadPool pool(threads);
  {
    const PeakReport measured =
        on_gpu ? measure_gpu_peaks(pool, seconds) : measure_peaks(threads, seconds, copy_bytes, jobs.empty());
    peaks = measured.peaks;
    for (const Measurement& m : measured.results) report(m);
  }
  Bench bench{pool, seconds, peaks, Memory(device, nullptr)};
  for (const Job& job : jobs) {
    for (const std::string& note : job.notes) line(note);
    if (!fits(job, line)) continue;
    for (const Measurement& m : job.run(bench)) report(m);
  }
  return {{"version", SWITCHYARD_VERSION},
          {"machine", on_gpu ? gpu_name() : machine_name()},
          {"results", results}};
}

}  // namespace switchyard::bench
