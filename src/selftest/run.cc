#include "selftest/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "core/error.h"
#include "kernels/gpu/kernels.h"
#include "selftest/compare.h"
#include "selftest/fault.h"

namespace switchyard::selftest {
namespace {

using Listed = std::vector<ListedKernel>;

Listed only_ran(const Listed& listed) {
  Listed ran;
  std::copy_if(listed.begin(), listed.end(), std::back_inserter(ran),
               [](const ListedKernel& k) { return k.ran; });
  return ran;
}

// What a case must make.
Arrays twin_of(const Kernel& kernel, const Case& c, ThreadPool& pool, FaultReport& faults);

// One run, on memory of its own.
struct Run {
  Run(const Case& c, ThreadPool& pool, bool fenced) {
    Arrays inputs;
    for (const PoisonedArray& x : c.inputs) inputs.push_back(fenced ? x.fenced() : x);
    for (const Output& x : c.outputs) outputs.push_back(fenced ? x.start.fenced() : x.start);
    const DispatchRecord record;
    c.run(pool, inputs, outputs);
    listed = record.listed();
    inputs_stayed = inputs == c.inputs;
  }
  // On a device.
  Run(const Case& c, ThreadPool& pool, Device& device) {
    Arrays inputs;
    for (const PoisonedArray& x : c.inputs) inputs.push_back(x.on(device));
    for (const Output& x : c.outputs) outputs.push_back(x.start.on(device));
    c.run(pool, inputs, outputs);
    for (PoisonedArray& x : inputs) x.read_back();
    for (PoisonedArray& x : outputs) x.read_back();
    inputs_stayed = inputs == c.inputs;
  }
  Arrays outputs;
  Listed listed;
  bool inputs_stayed = false;
};

void judge(const Case& c, const Run& found, const Arrays& expected, std::string_view how, bool in_tiles,
           Result& result) {
  std::string failure = found.inputs_stayed ? "" : "an input was written to";
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Comparison x = compare(c.outputs[i], found.outputs[i], expected[i], in_tiles);
    take_larger(x.max_abs, result.max_abs);
    take_larger(x.max_rel, result.max_rel);
    if (failure.empty()) failure = x.failure;
  }
  if (result.pass() && !failure.empty()) result.failure = fmt::format("{}, {}: {}", c.what, how, failure);
}

class Runner {
 public:
  Runner(const Kernel& kernel, int threads) : kernel_(kernel), one_(1), many_(threads) {
    faults_.running(kernel.name);
    const Isa active = active_isa();
    if (kernel.op == nullptr) {
      isas_ = {active};
    } else {
      for (int i = 1; i <= static_cast<int>(active); ++i) isas_.push_back(static_cast<Isa>(i));
    }
  }

  void run(const Case& c) {
    if (isas_.empty()) return;
    const Arrays expected = twin_of(kernel_, c, many_, faults_);
    Listed before;
    for (const Isa isa : isas_) {
      const ScopedIsa cap(isa);
      faults_.running(
          fmt::format("{} up to {}, {} of {}", kernel_.name, name_of(isa), name_of(c.dtype), c.what));
      const Run one(c, one_, false);
      const Listed ran = only_ran(one.listed);
      if (kernel_.op != nullptr && ran == before) continue;
      before = ran;
      Result& result = result_of(one.listed, c.dtype);
      ++result.cases;
      judge(c, one, expected, threads_text(1), in_tiles(result), result);
      if (!result.pass()) continue;  // to write before a fence would end the process
      const Run many(c, many_, true);
      judge(c, many, expected, threads_text(many_.threads()), in_tiles(result), result);
      if (result.pass() && many.outputs != one.outputs)
        result.failure = fmt::format("{}: {} threads give other bits than one", c.what, many_.threads());
    }
  }

  // By instruction set and dtype, and what no case reached.
  std::vector<Result> take_results() {
    for (const ListedKernel& k : listed_) {
      const bool ran = std::any_of(results_.begin(), results_.end(),
                                   [&](const Result& r) { return r.implementation == k.implementation; });
      if (ran || k.isa > active_isa() || k.isa == Isa::ref) continue;
      results_.push_back({.kernel = kernel_.name,
                          .implementation = std::string(k.implementation),
                          .isa = k.isa,
                          .failure = "no case reached it"});
    }
    std::stable_sort(results_.begin(), results_.end(), [](const Result& x, const Result& y) {
      return std::tie(x.isa, x.dtype) < std::tie(y.isa, y.dtype);
    });
    return std::move(results_);
  }

 private:
  static bool in_tiles(const Result& result) { return result.isa >= Isa::avx512_bf16; }
  static std::string threads_text(int threads) {
    return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
  }

  Result& result_of(const Listed& listed, DType dtype) {
    ListedKernel chosen{"", "portable", Isa::ref, true};
    if (kernel_.op != nullptr) {
      std::copy_if(listed.begin(), listed.end(), std::back_inserter(listed_),
                   [&](const ListedKernel& k) { return k.op == kernel_.op; });
      const auto at = std::find_if(listed.begin(), listed.end(),
                                   [&](const ListedKernel& k) { return k.ran && k.op == kernel_.op; });
      CHECK(at != listed.end(), "{} has no list {}", kernel_.name, kernel_.op);
      chosen = *at;
    }
    for (Result& result : results_) {
      if (result.implementation == chosen.implementation && result.dtype == name_of(dtype)) return result;
    }
    return results_.emplace_back(Result{.kernel = kernel_.name,
                                        .implementation = std::string(chosen.implementation),
                                        .isa = chosen.isa,
                                        .dtype = std::string(name_of(dtype))});
  }

  const Kernel& kernel_;
  ThreadPool one_, many_;
  FaultReport faults_;
  std::vector<Isa> isas_;
  Listed listed_;  // of the kernel's op, in all runs
  std::vector<Result> results_;
};

Arrays twin_of(const Kernel& kernel, const Case& c, ThreadPool& pool, FaultReport& faults) {
  const ScopedIsa cap(Isa::ref);
  faults.running(fmt::format("{} on ref, {} of {}", kernel.name, name_of(c.dtype), c.what));
  if (!c.twin) return Run(c, pool, false).outputs;
  Arrays outputs;
  for (const Output& output : c.outputs) outputs.push_back(output.start);
  c.twin(c.inputs, outputs);
  return outputs;
}

// Runs a case on the device and judges it. An op without a kernel there fails by the error it throws.
void run_case_on(Device& device, const Case& c, const Arrays& expected, ThreadPool& pool, Result& result) {
  ++result.cases;
  try {
    const std::int64_t before = gpu::launches();
    const Run first(c, pool, device);
    // Results of tensor cores are sums in another order, of products that are as exact.
    judge(c, first, expected, device.name(), true, result);
    // None has to where an op has nothing to read or leaves everything as it was.
    const bool reads = std::ranges::any_of(c.inputs, [](const PoisonedArray& x) { return x.size() > 0; });
    const bool writes = !std::ranges::equal(
        expected, c.outputs, [](const PoisonedArray& x, const Output& y) { return x == y.start; });
    if (result.pass() && reads && writes && gpu::launches() == before)
      result.failure = fmt::format("{}: no kernel of the device ran", c.what);
    if (result.pass() && Run(c, pool, device).outputs != first.outputs)
      result.failure = fmt::format("{}: a second run gives other bits", c.what);
  } catch (const Error& error) {
    if (result.pass()) result.failure = fmt::format("{}: {}", c.what, error.what());
  }
}

}  // namespace

std::vector<Result> run_kernel_on(Device& device, const Kernel& kernel, std::uint32_t seed) {
  std::vector<Result> results;
  if (kernel.on_host) return results;
  ThreadPool pool(1);
  FaultReport faults;
  for (const Case& c : kernel.cases(seed)) {
    const Arrays expected = twin_of(kernel, c, pool, faults);
    faults.running(fmt::format("{} on {}, {} of {}", kernel.name, device.name(), name_of(c.dtype), c.what));
    auto at = std::ranges::find(results, name_of(c.dtype), &Result::dtype);
    if (at == results.end())
      at = results.insert(at, {.kernel = kernel.name,
                               .implementation = std::string(device.name()),
                               .dtype = std::string(name_of(c.dtype))});
    run_case_on(device, c, expected, pool, *at);
  }
  return results;
}

std::vector<Result> run_kernel(const Kernel& kernel, int threads, std::uint32_t seed) {
  Runner runner(kernel, threads);
  for (const Case& c : kernel.cases(seed)) runner.run(c);
  return runner.take_results();
}

}  // namespace switchyard::selftest
