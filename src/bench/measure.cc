#include "bench/measure.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/error.h"
#include "core/gpu.h"

namespace switchyard::bench {
namespace {

constexpr int kLeastRounds = 3, kMostRounds = 10000;

const char* short_name(DType dtype) {
  return dtype == DType::bf16 ? "bf16" : "f32";
}

std::string shape_text(const nlohmann::ordered_json& shape) {
  std::string text;
  for (const auto& [key, value] : shape.items())
    text += (text.empty() ? "" : " ") + (key == "model" ? "" : key + "=") +
            (value.is_string() ? value.get<std::string>() : value.dump());
  return text;
}

std::string duration(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3f} s", seconds);
  return seconds >= 1e-3 ? fmt::format("{:.3f} ms", 1e3 * seconds) : fmt::format("{:.2f} us", 1e6 * seconds);
}

}  // namespace

double now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

Timing timing_of(std::vector<double> seconds) {
  CHECK(!seconds.empty());
  std::sort(seconds.begin(), seconds.end());
  const std::size_t middle = seconds.size() / 2;
  const double median =
      seconds.size() % 2 == 1 ? seconds[middle] : (seconds[middle - 1] + seconds[middle]) / 2;
  return {median, seconds.front(), static_cast<int>(seconds.size()), 0, 0};
}

Timing time_rounds(double budget, const std::function<void()>& body) {
  body();
  std::vector<double> rounds;
  double least_work = std::numeric_limits<double>::infinity();
  const double begin = now(), work_begin = processor_seconds();
  while (static_cast<int>(rounds.size()) < kLeastRounds ||
         (now() - begin < budget && static_cast<int>(rounds.size()) < kMostRounds)) {
    const double round = now(), work = processor_seconds();
    body();
    rounds.push_back(now() - round);
    least_work = std::min(least_work, processor_seconds() - work);
  }
  Timing timing = timing_of(std::move(rounds));
  timing.processor_seconds = least_work;
  timing.cores = (processor_seconds() - work_begin) / (now() - begin);
  return timing;
}

Timing time_rounds(const Bench& bench, const std::function<void()>& body) {
  if (bench.memory.device().kind() != DeviceKind::cuda) return time_rounds(bench.budget, body);
  return time_rounds(bench.budget, [&] {
    body();
    gpu::synchronize();
  });
}

nlohmann::ordered_json share(double rate, double peak) {
  return peak > 0 ? nlohmann::ordered_json(rate / peak) : nlohmann::ordered_json(nullptr);
}

double roofline_seconds(const Measurement& m, const Peaks& peaks) {
  return std::max(m.flops / peaks.flops_of(m.dtype), m.bytes / peaks.stream_bytes);
}

nlohmann::ordered_json result_json(const Measurement& m, const Peaks& peaks) {
  const double peak = peaks.flops_of(m.dtype), rate = m.flops / m.time.seconds;
  const double floor = peaks.measured() ? roofline_seconds(m, peaks) : 0;
  const auto known = [&](double value) {
    return peaks.measured() ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json json{{"name", m.name},
                              {"shape", m.shape},
                              {"dtype", short_name(m.dtype)},
                              {"threads", m.threads},
                              {"direction", m.direction},
                              {"seconds", m.time.seconds},
                              {"flops", m.flops},
                              {"tflops", rate * 1e-12},
                              {"peak_tflops", known(peak * 1e-12)},
                              {"fraction_of_peak", share(rate, peak)},
                              {"bytes", m.bytes},
                              {"gb_per_s", m.bytes / m.time.seconds * 1e-9},
                              {"stream_gb_per_s", known(peaks.stream_bytes * 1e-9)},
                              {"roofline_seconds", known(floor)},
                              {"fraction_of_roofline", known(floor / m.time.seconds)},
                              {"rounds", m.time.rounds},
                              {"best_seconds", m.time.best}};
  if (m.time.processor_seconds > 0) {
    json["processor_seconds"] = m.time.processor_seconds;
    json["cores_at_work"] = m.time.cores;
  }
  json.update(m.more);
  return json;
}

std::string table_header() {
  return fmt::format("{:<10}{:<9}{:<5}{:>11}{:>8}{:>7}{:>8}{:>9}{:>7}  {}", "case", "way", "type", "median",
                     "TFLOP/s", "peak", "GB/s", "roofline", "cores", "shape");
}

std::string table_row(const Measurement& m, const Peaks& peaks) {
  const double rate = m.flops / m.time.seconds;
  const bool computes = m.flops > 0, moves = m.bytes > 0;
  const auto cell = [](bool has_meaning, std::string text) { return has_meaning ? text : std::string("-"); };
  return fmt::format(
      "{:<10}{:<9}{:<5}{:>11}{:>8}{:>7}{:>8}{:>9}{:>7}  {}", m.name, m.direction,
      computes ? short_name(m.dtype) : "-", duration(m.time.seconds),
      cell(computes, fmt::format("{:.3f}", rate * 1e-12)),
      cell(computes && peaks.measured(), fmt::format("{:.1f}%", 100 * rate / peaks.flops_of(m.dtype))),
      cell(moves, fmt::format("{:.2f}", m.bytes / m.time.seconds * 1e-9)),
      cell((computes || moves) && peaks.measured(),
           fmt::format("{:.1f}%", 100 * roofline_seconds(m, peaks) / m.time.seconds)),
      m.time.cores > 0 ? fmt::format("{:.2f}", m.time.cores) : "", shape_text(m.shape));
}

}  // namespace switchyard::bench
