#include "bench/run.h"

#include <fmt/format.h>

#include <optional>

#include "bench/model_run.h"
#include "bench/peak.h"
#include "core/cores.h"
#include "core/error.h"
#include "core/gpu.h"
#include "kernels/machine/machine.h"
#include "kernels/registry/proofs.h"

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
    {"gmm", "grouped products of the up projection and their gradients", gmm_keys, gmm_jobs},
    {"moe", "the whole MoE layer of one rank: router, sort, gather, experts, combine", moe_keys, moe_jobs},
    {"attention", "causal attention", attention_keys, attention_jobs},
    {"delta", "the gated delta rule of Qwen3-Next", gated_delta_keys, gated_delta_jobs},
    {"loss", "output projection with cross-entropy", loss_keys, loss_jobs},
    {"optimizer", "an AdamW update", optimizer_keys, optimizer_jobs},
    {"checkpoint", "a checkpoint written to the disk, against plain files", checkpoint_keys, checkpoint_jobs,
     false, false, "it measures the way from the host's memory to the disk"},
    {"sampling", "a next token of its logits, on one thread", sampling_keys, sampling_jobs, true, false,
     "this measures the CPU's drawing of tokens"},
    {"grammar", "masks of answers bound to a schema, on one thread", grammar_keys, grammar_jobs, true, false,
     "masks are made on the host"},
    {"comm", "collectives among ranks of one process", comm_keys, comm_jobs, true},
    {"train", "whole training steps: tokens a second", train_keys, train_jobs, true, true},
    {"generate", "reading a prompt, and token after token", generate_keys, generate_jobs, true, true},
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

// The device that the call names. Error(usage) for a GPU where the case cannot use one.
Device& device_of(const Case& chosen, const Keys& keys) {
  const std::string name = chosen.with_config
                               ? model_run_config(chosen.name, keys.config_settings()).get_string("device")
                               : keys.text("device");
  if (chosen.only_on_host != nullptr && name != "cpu")
    fail_usage("[bench] {} device={}: it runs on the CPU alone: {}", chosen.name, name, chosen.only_on_host);
  if (!chosen.with_config && chosen.only_on_host == nullptr) {
    const std::string kernels = keys.text("gpu_kernels");
    if (kernels != "proven" && kernels != "all")
      fail_usage("[bench] gpu_kernels={}: expected proven or all", kernels);
    registry::take_unproven_rows(kernels == "all");
  }
  Device& device = Device::named(name);
  if (device.kind() == DeviceKind::cuda_emulated && keys.given("copy_mib"))
    fail_usage("[bench] copy_mib: an emulated GPU's peaks are not measured");
  if (chosen.name == std::string_view("peak") && device.kind() == DeviceKind::cuda_emulated)
    fail_usage("[bench] peak device={}: an emulated GPU has no peaks", name);
  return device;
}

// Names what does the work, for people and for the report.
std::string machine_of(const Device& device) {
  if (device.kind() == DeviceKind::cuda) return gpu_name();
  return device.kind() == DeviceKind::cuda_emulated ? "a GPU emulated on " + machine_name() : machine_name();
}

PeakReport peaks_of(const Device& device, ThreadPool& pool, const Keys& keys, double seconds, bool alone) {
  if (device.kind() == DeviceKind::cuda_emulated) return {};
  if (device.kind() != DeviceKind::cuda)
    return measure_peaks(pool.threads(), seconds, copy_bytes_of(keys, pool.threads()), alone);
  constexpr double kShare = 0.1;  // of a measurement's time, in which a GPU has some fifty rounds
  std::optional<std::size_t> copied;
  if (keys.given("copy_mib")) copied = static_cast<std::size_t>(keys.integer("copy_mib")) << 20;
  return measure_gpu_peaks(pool, alone ? seconds : kShare * seconds, copied);
}

// The peaks with the name of what has them; null where they were not measured.
nlohmann::ordered_json peaks_json(const Device& device, const Peaks& peaks) {
  if (!peaks.measured()) return nullptr;
  return {{"of", machine_of(device)},
          {"bf16_tflops", peaks.bf16_flops * 1e-12},
          {"f32_tflops", peaks.f32_flops * 1e-12},
          {"copy_gb_per_s", peaks.stream_bytes * 1e-9}};
}

std::string peaks_line(const Device& device, const Peaks& peaks) {
  if (!peaks.measured())
    return "peaks: not measured, as an emulated GPU's share of a card means nothing; times are the "
           "emulator's";
  return fmt::format("peaks of {}: {:.2f} TFLOP/s (bf16), {:.2f} (f32), copy {:.1f} GB/s", machine_of(device),
                     peaks.bf16_flops * 1e-12, peaks.f32_flops * 1e-12, peaks.stream_bytes * 1e-9);
}

// False, and a line that says why, where the job does not fit into the device's memory.
bool fits(const Job& job, const Device& device, const std::function<void(const std::string&)>& line) {
  const bool on_gpu = device.kind() == DeviceKind::cuda;
  const auto free = on_gpu ? static_cast<double>(gpu::properties().memory_bytes)
                           : static_cast<double>(available_memory_bytes());
  if (free <= 0 || job.memory_bytes < 0.9 * free) return true;
  line(fmt::format("skipped: {} takes {:.1f} GiB, {} {:.1f} GiB", job.label, job.memory_bytes / kGiB,
                   on_gpu ? "the GPU has" : "free are", free / kGiB));
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
  if (!chosen.with_config)
    keys.push_back({"device", "cpu",
                    chosen.only_on_host == nullptr ? "cpu, cuda, auto, ...: where the work is done"
                                                   : std::string("cpu alone: ") + chosen.only_on_host});
  if (!chosen.with_config && chosen.only_on_host == nullptr)
    keys.push_back({"gpu_kernels", "proven", "proven or all, as the configuration's key"});
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
  Device& device = device_of(chosen, keys);
  if (!device.is_gpu()) copy_bytes_of(keys, threads);
  const std::vector<Job> jobs = chosen.jobs(keys);

  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  line(device.is_gpu() ? machine_of(device) : fmt::format("{}, {} threads", machine_name(), threads));
  line(table_header());
  ThreadPool pool(threads);
  const PeakReport measured = peaks_of(device, pool, keys, seconds, jobs.empty());
  const auto report = [&](const Measurement& m) {
    line(table_row(m, measured.peaks));
    for (const std::string& more : m.lines) line("  " + more);
    results.push_back(result_json(m, measured.peaks));
  };
  for (const Measurement& m : measured.results) report(m);
  line(peaks_line(device, measured.peaks));
  Bench bench{pool, seconds, measured.peaks, Memory(device, nullptr)};
  for (const Job& job : jobs) {
    for (const std::string& note : job.notes) line(note);
    if (!fits(job, device, line)) continue;
    for (const Measurement& m : job.run(bench)) report(m);
  }
  return {{"version", SWITCHYARD_VERSION},
          {"machine", machine_of(device)},
          {"device", device.name()},
          {"peaks", peaks_json(device, measured.peaks)},
          {"results", results}};
}

}  // namespace switchyard::bench
