#include "cli/selftest_command.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/help_page.h"
#include "commands/options.h"
#include "core/cores.h"
#include "core/error.h"
#include "core/sha256.h"
#include "kernels/machine/machine.h"
#include "kernels/registry/proofs.h"
#include "metrics/atomic_file.h"
#include "selftest/report.h"
#include "selftest/run.h"

namespace switchyard {
namespace {

constexpr const char* kSelftestHelp =
    R"(switchyard selftest [FILTER ...] [key=value ...] [--only NAME] [--list] [--json FILE] [--bits FILE]

Runs every kernel on every instruction set that this machine has, with one thread and with several, and compares what
it computes with the reference implementation: sizes that are no multiple of anything, one row, nothing at all, empty groups and
one that takes all rows, depths that need several passes. Inputs stand between NaN, outputs start as NaN between guards,
or both end where to read on is a fault: an element that is not written, and whatever is read or written outside, is
seen. A kernel that faults ends the run with a line that names it. Takes some ten seconds on two cores.

Products, rows that move, flat operations and optimizers must give the reference's values exactly; attention, norms, the
activation and the loss are held to bounds on rounding. The table says how far the worst element was from the
reference's (max rel: over the largest magnitude of that output).

The column "implementation" names the row of the op's table that ran (SWITCHYARD_VERBOSE=dispatch says why the rows before
it did not). A row that this machine can run and no case reached fails, unless a filter left cases of its table out.

  FILTER       only kernels with this word in their name (several: any of them)
  threads=N    threads of the second run of each case (default: one for each core, at least 2)
  seed=N       of the random numbers (default 1)
  device=NAME  cuda: the GPU's kernels, each case twice; cuda_emulated: the same kernels without a GPU, slowly
  --only NAME  the kernel of this whole name alone
  --list       print the names of all kernels, a line each, and test none
  --json FILE  also write all results to FILE
  --bits FILE  write a line for each case and row, those of ref included: the SHA-256 of the outputs' bytes as the row
               wrote them on one thread, the kernel, the row, the dtype, the case. Files of two builds, compared, show
               which bits a change moved

SWITCHYARD_ISA=ref|avx2|avx512|avx512_bf16|amx caps the instruction set; amx_emulated tests what AMX runs on a machine
that has AVX512-BF16 alone (half a minute).

Exit status: 0 all agree, 2 wrong command line, 3 a difference was found.

Examples:
  switchyard selftest
  switchyard selftest gmm attention --json selftest.json
)";

struct SelftestOptions {
  std::vector<std::string> filters;
  int threads = std::max(2, usable_cores());
  int seed = 1;
  Device* device = &Device::cpu();
};

int number_of(const std::string& setting, std::size_t equals, int most) {
  int value = 0;
  const char *begin = setting.data() + equals + 1, *end = setting.data() + setting.size();
  const auto [stop, status] = std::from_chars(begin, end, value);
  if (status != std::errc() || stop != end || value < 1 || value > most)
    fail_usage("[selftest] {}: expected a whole number from 1 to {}", setting, most);
  return value;
}

SelftestOptions selftest_options(const std::vector<std::string>& settings) {
  constexpr int kMostThreads = 1024, kMostSeed = 1'000'000;
  SelftestOptions request;
  for (const std::string& setting : settings) {
    const auto equals = setting.find('=');
    const std::string key = setting.substr(0, equals);
    if (equals == std::string::npos)
      request.filters.push_back(setting);
    else if (key == "threads")
      request.threads = number_of(setting, equals, kMostThreads);
    else if (key == "seed")
      request.seed = number_of(setting, equals, kMostSeed);
    else if (key == "device")
      request.device = &Device::named(setting.substr(equals + 1));
    else
      fail_usage("[selftest] unknown key {}; the keys are threads, seed and device", key);
  }
  return request;
}

bool matches(const selftest::KernelCases& kernel, const std::string& filter) {
  return std::string_view(kernel.name).find(filter) != std::string_view::npos;
}

std::vector<selftest::KernelCases> chosen_of(std::span<const selftest::KernelCases> kernels,
                                             const std::vector<std::string>& filters) {
  std::string names;
  for (const selftest::KernelCases& kernel : kernels)
    names += (names.empty() ? "" : ", ") + std::string(kernel.name);
  for (const std::string& filter : filters) {
    if (std::none_of(kernels.begin(), kernels.end(),
                     [&](const auto& kernel) { return matches(kernel, filter); }))
      fail_usage("[selftest] no kernel has {} in its name; they are {}", filter, names);
  }
  std::vector<selftest::KernelCases> chosen;
  std::copy_if(kernels.begin(), kernels.end(), std::back_inserter(chosen), [&](const auto& kernel) {
    return filters.empty() || std::any_of(filters.begin(), filters.end(),
                                          [&](const auto& filter) { return matches(kernel, filter); });
  });
  return chosen;
}

// The kernel of this name alone, which no filter may stand beside.
std::vector<selftest::KernelCases> kernel_named(std::span<const selftest::KernelCases> kernels,
                                                const std::string& name,
                                                const std::vector<std::string>& filters) {
  const auto found =
      std::ranges::find(kernels, name, [](const auto& kernel) { return std::string(kernel.name); });
  if (!filters.empty())
    fail_usage("[selftest] --only {}: takes no filter beside it, got {}", name, filters[0]);
  if (found == kernels.end())
    fail_usage("[selftest] --only {}: no kernel has this name; --list has them", name);
  return {*found};
}

// Returns the hash of the elements, array after array, without the guards that the test puts around them.
std::string hash_of(const selftest::Arrays& outputs) {
  Sha256 hash;
  for (const PoisonedArray& x : outputs) {
    const auto bytes = static_cast<std::size_t>(x.size()) * size_of(x.dtype());
    hash.add({static_cast<const std::byte*>(x.data()), bytes});
  }
  return hash.hex();
}

}  // namespace

int run_selftest(std::span<const selftest::KernelCases> kernels, std::span<const std::string> args) {
  const Options options = parse_options("selftest", args);
  if (options.help) {
    print_help_page(kSelftestHelp);
    return 0;
  }
  if (options.flags.contains("--list")) {
    for (const selftest::KernelCases& kernel : kernels) fmt::print("{}\n", kernel.name);
    return 0;
  }
  const SelftestOptions request = selftest_options(options.settings);
  const auto only = options.values.find("--only");
  const auto chosen = only == options.values.end() ? chosen_of(kernels, request.filters)
                                                   : kernel_named(kernels, only->second, request.filters);
  const bool on_gpu = request.device->is_gpu();
  registry::take_unproven_rows(true);
  if (on_gpu)
    fmt::print("{} on {}\n{}\n", request.device->name(), machine_name(), selftest::table_header());
  else
    fmt::print("{}, 1 and {} threads\n{}\n", machine_name(), request.threads, selftest::table_header());
  std::fflush(stdout);  // a fault flushes nothing
  std::vector<selftest::Result> results;
  const auto bits_file = options.values.find("--bits");
  std::string bits;
  const auto report = [&](std::vector<selftest::Result> some) {
    for (selftest::Result& result : some) {
      fmt::print("{}\n", selftest::table_row(result));
      results.push_back(std::move(result));
    }
    std::fflush(stdout);
  };
  selftest::Reach reach;
  for (const selftest::KernelCases& kernel : chosen) {
    const auto seed = static_cast<std::uint32_t>(request.seed);
    selftest::Listener listener;
    if (bits_file != options.values.end()) {
      listener = [&](const std::string& row, const selftest::Case& c, const selftest::Arrays& outputs) {
        bits += fmt::format("{} {} {} {}\n", hash_of(outputs), kernel.name, row, c.what);
      };
    }
    report(on_gpu ? selftest::run_kernel_on(*request.device, kernel, seed, reach, listener)
                  : selftest::run_kernel(kernel, request.threads, seed, reach, listener));
  }
  report(reach.failures(kernels, chosen));
  fmt::print("{}\n", selftest::verdict(results));
  if (!options.json_file.empty())
    write_file_atomic(options.json_file, selftest::results_json(results).dump(1) + "\n");
  if (bits_file != options.values.end()) write_file_atomic(bits_file->second, bits);
  const bool pass =
      std::all_of(results.begin(), results.end(), [](const selftest::Result& r) { return r.pass(); });
  return pass ? 0 : 3;
}

int selftest_command(std::span<const std::string> args) {
  return run_selftest(selftest::kernels(), args);
}

}  // namespace switchyard
