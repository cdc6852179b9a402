// What a benchmark measures and what is said about it.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/thread_pool.h"

namespace switchyard::bench {

double now();                // seconds of a steady clock
double processor_seconds();  // of this process so far, all threads

struct Timing {
  double seconds = 0;  // the median round
  double best = 0;     // the fastest
  int rounds = 0;
  double processor_seconds = 0;  // of all threads in the round that took least of it; 0 where not measured
  double cores = 0;              // at work on average
};

// Runs `body` once to warm up, then again and again for about `budget` seconds, at least three times.
Timing time_rounds(double budget, const std::function<void()>& body);
// Of rounds that were timed elsewhere; at least one.
Timing timing_of(std::vector<double> seconds);

// One line of the report, before it is compared with the machine's peaks.
struct Measurement {
  std::string name;
  nlohmann::ordered_json shape;
  DType dtype = DType::bf16;
  int threads = 1;
  std::string direction = "fwd";  // fwd, dlhs, drhs or fwd+bwd
  Timing time;
  double flops = 0;  // 2 a multiply-add
  double bytes = 0;  // compulsory: each input read once, each output written once
  nlohmann::ordered_json more = nlohmann::ordered_json::object();  // fields of this case alone
};

// What the machine gives on the same threads.
struct Peaks {
  double bf16_flops = 0, f32_flops = 0;  // a second
  double stream_bytes = 0;               // a second, copied: read and written
  double read_bytes = 0;                 // a second, only read
  double update_bytes = 0;               // a second, read and written in place
  double flops_of(DType dtype) const { return dtype == DType::bf16 ? bf16_flops : f32_flops; }
};

// What a case works with.
struct Bench {
  ThreadPool& pool;
  double budget;  // seconds a measurement
  Peaks peaks;
  Memory memory = {};  // where operands are
};

// The same in rounds of a bench: a round ends when its device has done the work.
Timing time_rounds(const Bench& bench, const std::function<void()>& body);

// One thing to measure. It takes `memory_bytes`; where that much is not free it is skipped and said.
struct Job {
  std::string label;
  double memory_bytes = 0;
  std::function<std::vector<Measurement>(Bench&)> run;
  std::vector<std::string> notes = {};  // to be said first
};

// The smallest time that products at the peak and compulsory bytes at the bandwidth allow.
double roofline_seconds(const Measurement& m, const Peaks& peaks);

// The object of one result: the fields of docs/formats.md, then those of the case.
nlohmann::ordered_json result_json(const Measurement& m, const Peaks& peaks);

std::string table_header();
std::string table_row(const Measurement& m, const Peaks& peaks);

}  // namespace switchyard::bench
