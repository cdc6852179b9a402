#include "cli/bench_command.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <vector>

#include "bench/run.h"
#include "cli/help_page.h"
#include "commands/options.h"
#include "config/declaration.h"
#include "core/error.h"
#include "metrics/atomic_file.h"

namespace switchyard {
namespace {

constexpr const char* kBenchHelp =
    R"(switchyard bench CASE [key=value ...] [--seconds S] [--json FILE]

Measures the peaks of what does the work (the CPU: products in registers, copy bandwidth, on the same threads; with
device=cuda the GPU: large products, copies within its memory), then the case, and prints how close it comes: TFLOP/s and their share of the peak, compulsory bytes a second (each input read once,
each output written once), and the share of the roofline: the time that peak and bandwidth allow over the time
taken, which is the median of several rounds. A copy counts the bytes that it reads and those that it writes. Work
that is updated in place may pass the bandwidth of a copy. Fewer cores at work than threads mean that the machine had
other work, or the case could not use them all. device=cuda_emulated runs a GPU's kernels on the CPU, for tests, and
reports no shares.

  --seconds S  time for each measurement (default 1; at least three rounds are run)
  --json FILE  also write all numbers to FILE

SWITCHYARD_ISA=ref|avx2|avx512|avx512_bf16|amx caps the instruction set, of the peak as well.

Cases and their keys. Where several values are possible they stand with commas between:
)";

constexpr const char* kExamples = R"(
Examples:
  switchyard bench peak
  switchyard bench gmm model=deepseek-v2-lite skew=balanced,zipf --json gmm.json
  switchyard bench moe tokens=1024 emb=512 mlp=1024 experts=8 topk=2 threads=1
  switchyard bench train num_experts=16 max_target_length=512
  switchyard bench generate device=cuda per_device_batch_size=32
)";

void print_help() {
  std::string page = kBenchHelp;
  const auto add_keys = [&](const std::vector<bench::Key>& keys) {
    for (const auto& key : keys)
      page += fmt::format("      {:<14}  {}{}\n", key.name + "=", key.help,
                          key.fallback.empty() ? "" : " (default " + key.fallback + ")");
  };
  for (const auto& one : bench::cases()) {
    page += fmt::format("  {:<10}  {}\n", one.name, one.help);
    add_keys(one.keys());
    if (one.only_on_host != nullptr) page += fmt::format("      device=cpu alone: {}\n", one.only_on_host);
    if (one.with_config)
      page += "      CONFIG.yml and the keys of a config (default: a mixtral of 140 M parameters)\n";
  }
  page += "  every case (comm, sampling, grammar, train and generate have threads of their own)\n";
  add_keys(bench::all_keys(bench::cases().front()));
  print_help_page(page + kExamples);
}

double parse_seconds(const std::string& text) {
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size() || !(value > 0) || value > 3600)
    fail_usage("[bench] --seconds {}: expected a number above 0, such as 0.5", text);
  return value;
}

struct Request {
  bool help = false;
  double seconds = 1;
  std::string json_file;
  std::vector<std::string> words;  // the case, then key=value
};

Request parse_bench(std::span<const std::string> args) {
  const Options given = parse_options("bench", args);
  const auto seconds = given.values.find("--seconds");
  return {given.help, seconds == given.values.end() ? 1 : parse_seconds(seconds->second), given.json_file,
          given.settings};
}

const bench::Case& case_of(const Request& request) {
  std::vector<std::string> names;
  std::string list;
  for (const auto& one : bench::cases()) {
    names.push_back(one.name);
    list += (list.empty() ? "" : ", ") + names.back();
  }
  if (request.words.empty()) fail_usage("[bench] expected a case, one of {}", list);
  for (const auto& one : bench::cases()) {
    if (request.words[0] == one.name) return one;
  }
  fail_usage("[bench] expected a case, one of {}, got {}{}", list, request.words[0],
             nearest_hint(request.words[0], names));
}

}  // namespace

int bench_command(std::span<const std::string> args) {
  const Request request = parse_bench(args);
  if (request.help) {
    print_help();
    return 0;
  }
  const bench::Case& chosen = case_of(request);
  const auto json = bench::run_case(chosen, std::span(request.words).subspan(1), request.seconds,
                                    [](const std::string& line) {
                                      fmt::print("{}\n", line);
                                      std::fflush(stdout);
                                    });
  if (!request.json_file.empty()) write_file_atomic(request.json_file, json.dump(1) + "\n");
  return 0;
}

}  // namespace switchyard
