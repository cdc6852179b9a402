// The result types of a benchmark, and functions that time and report.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/thread_pool.h"

namespace switchyard::bench {

double now();                // seconds on a steady clock
double processor_seconds();  // CPU seconds of this process so far, over all threads

struct Timing {
  double seconds = 0;  // the median round
  double best = 0;     // the fastest
  int rounds = 0;
  double processor_seconds = 0;  // CPU seconds of all threads in the round that took least; 0: not measured
  double cores = 0;              // busy cores on average
};

// Runs `body` once to warm up, then again and again for about `budget` seconds, at least three times.
Timing time_rounds(double budget, const std::function<void()>& body);
// The timing of rounds that were timed elsewhere; at least one.
Timing timing_of(std::vector<double> seconds);

// One result of the report, before it is compared with the machine's peaks.
struct Measurement {
  std::string name;
  nlohmann::ordered_json shape;
  DType dtype = DType::bf16;
  int threads = 1;
  std::string direction = "fwd";  // fwd, dlhs, drhs or fwd+bwd
  Timing time;
  double flops = 0;  // 2 for each multiply-add
  double bytes = 0;  // compulsory: each input read once, each output written once
  nlohmann::ordered_json more = nlohmann::ordered_json::object();  // fields that only this case has
  std::vector<std::string> lines = {};                             // for people, below the table's row
};

// The peak rates of the CPU, on the same number of threads, or of a GPU. Unmeasured ones are 0.
struct Peaks {
  double bf16_flops = 0, f32_flops = 0;  // per second
  double stream_bytes = 0;               // per second, copied: read and written
  double read_bytes = 0;                 // per second, only read
  double update_bytes = 0;               // per second, read and written in place
  double flops_of(DType dtype) const { return dtype == DType::bf16 ? bf16_flops : f32_flops; }
  bool measured() const { return bf16_flops > 0; }
};

// The resources of a case.
struct Bench {
  ThreadPool& pool;
  double budget;  // seconds for each measurement
  Peaks peaks;
  Memory memory = {};  // the memory that holds operands
};

// Times rounds of a bench; a round ends when its device has done the work.
Timing time_rounds(const Bench& bench, const std::function<void()>& body);

// One thing to measure. It needs `memory_bytes`; without that much free memory it is skipped with a note.
struct Job {
  std::string label;
  double memory_bytes = 0;
  std::function<std::vector<Measurement>(Bench&)> run;
  std::vector<std::string> notes = {};  // lines to print first
};

// rate / peak for JSON; null where the peak was not measured.
nlohmann::ordered_json share(double rate, double peak);

// A lower bound of the time: products at the peak rate and compulsory bytes at the peak bandwidth.
double roofline_seconds(const Measurement& m, const Peaks& peaks);

// One result as JSON: the fields of docs/json.md, then those of the case.
nlohmann::ordered_json result_json(const Measurement& m, const Peaks& peaks);

std::string table_header();
std::string table_row(const Measurement& m, const Peaks& peaks);

}  // namespace switchyard::bench
