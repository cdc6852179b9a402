#include "selftest/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "core/error.h"
#include "kernels/cuda/planned.h"
#include "selftest/compare.h"
#include "selftest/fault.h"

namespace switchyard::selftest {
namespace {

using Listed = std::vector<ListedKernel>;

Listed only_ran(const Listed& listed) {
  Listed ran;
  std::ranges::copy_if(listed, std::back_inserter(ran), &ListedKernel::ran);
  return ran;
}

// One run of a case, on its own memory.
struct Run {
  // On the host, between guards or before fences.
  Run(const Case& c, ThreadPool& pool, bool fenced) {
    Arrays inputs;
    for (const PoisonedArray& x : c.inputs) inputs.push_back(fenced ? x.fenced() : x);
    for (const Output& x : c.outputs) outputs.push_back(fenced ? x.start.fenced() : x.start);
    call(c, pool, inputs);
    inputs_stayed = inputs == c.inputs;
  }
  Run(const Case& c, ThreadPool& pool, Device& device) {
    Arrays inputs;
    for (const PoisonedArray& x : c.inputs) inputs.push_back(x.on(device));
    for (const Output& x : c.outputs) outputs.push_back(x.start.on(device));
    call(c, pool, inputs);
    for (PoisonedArray& x : inputs) x.read_back();
    for (PoisonedArray& x : outputs) x.read_back();
    inputs_stayed = inputs == c.inputs;
  }
  Arrays outputs;
  Listed listed;
  bool inputs_stayed = false;

 private:
  void call(const Case& c, ThreadPool& pool, Arrays& inputs) {
    const DispatchRecord record;
    c.run(pool, inputs, outputs);
    listed = record.listed();
  }
};

// Results of a kernel, by implementation and dtype.
class Results {
 public:
  explicit Results(const KernelCases& kernel) : kernel_(kernel) {}

  // Returns the results that a run counts for: those of the table's rows that ran, or else of `otherwise`.
  std::vector<std::size_t> of(const Listed& listed, DType dtype, std::string_view otherwise) {
    std::vector<std::size_t> found;
    for (const ListedKernel& k : listed) {
      if (kernel_.table == nullptr || !k.ran || k.table != kernel_.table) continue;
      const std::size_t at = index_of(k.implementation, k.isa, dtype);
      if (std::ranges::find(found, at) == found.end()) found.push_back(at);
    }
    if (found.empty()) found.push_back(index_of(otherwise, Isa::ref, dtype));
    return found;
  }
  std::size_t of_device(std::string_view name, DType dtype) { return index_of(name, Isa::ref, dtype); }
  Result& operator[](std::size_t i) { return results_[i]; }
  std::vector<Result> take() {
    std::ranges::stable_sort(results_, [](const Result& x, const Result& y) {
      return std::tie(x.isa, x.dtype) < std::tie(y.isa, y.dtype);
    });
    return std::move(results_);
  }

 private:
  std::size_t index_of(std::string_view implementation, Isa isa, DType dtype) {
    for (std::size_t i = 0; i < results_.size(); ++i) {
      if (results_[i].implementation == implementation && results_[i].dtype == name_of(dtype)) return i;
    }
    results_.push_back({.kernel = kernel_.name,
                        .implementation = std::string(implementation),
                        .isa = isa,
                        .dtype = std::string(name_of(dtype))});
    return results_.size() - 1;
  }

  const KernelCases& kernel_;
  std::vector<Result> results_;
};

// Adds to the result what a run of the case shows.
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

Arrays reference_of(const KernelCases& kernel, const Case& c, ThreadPool& pool, FaultReport& faults) {
  const ScopedIsa cap(Isa::ref);
  faults.running(fmt::format("{} on ref, {} of {}", kernel.name, name_of(c.dtype), c.what));
  if (!c.reference) return Run(c, pool, false).outputs;
  Arrays outputs;
  for (const Output& output : c.outputs) outputs.push_back(output.start);
  c.reference(c.inputs, outputs);
  return outputs;
}

void tell(const Listener& listener, const KernelCases& kernel, const Case& c, const Run& run,
          std::string_view otherwise) {
  if (!listener) return;
  std::vector<std::string_view> ran;
  for (const ListedKernel& k : run.listed) {
    const bool counts = kernel.table != nullptr && k.ran && k.table == kernel.table;
    if (counts && std::ranges::find(ran, k.implementation) == ran.end()) ran.push_back(k.implementation);
  }
  if (ran.empty()) ran.push_back(otherwise);
  listener(fmt::format("{} {}", fmt::join(ran, "+"), name_of(c.dtype)), c, run.outputs);
}

// The instruction sets on which a kernel may choose other implementations.
std::vector<Isa> isas_of(const KernelCases& kernel) {
  const Isa active = active_isa();
  if (kernel.table == nullptr) return {active};
  std::vector<Isa> isas;
  for (int i = 1; i <= static_cast<int>(active); ++i) isas.push_back(static_cast<Isa>(i));
  return isas;
}

std::string threads_text(int threads) {
  return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
}

}  // namespace

void Reach::add(const std::vector<ListedKernel>& listed) {
  for (const ListedKernel& k : listed) {
    ListedKernel& row =
        rows_.try_emplace({std::string(k.table), std::string(k.implementation)}, k).first->second;
    row.ran |= k.ran;
    row.possible |= k.possible;
  }
}

std::vector<Result> Reach::failures(std::span<const KernelCases> all,
                                    std::span<const KernelCases> run) const {
  const auto cases_of = [](std::span<const KernelCases> kernels, std::string_view table) {
    return std::ranges::count_if(
        kernels, [&](const KernelCases& k) { return k.table != nullptr && k.table == table; });
  };
  std::vector<Result> failures;
  for (const auto& [name, row] : rows_) {
    const bool reference = !row.on_gpu && row.isa == Isa::ref;
    if (row.ran || !row.possible || reference || cases_of(all, row.table) != cases_of(run, row.table))
      continue;
    failures.push_back({.kernel = std::string(row.table),
                        .implementation = std::string(row.implementation),
                        .isa = row.isa,
                        .failure = "no case reached it"});
  }
  return failures;
}

std::vector<Result> run_kernel(const KernelCases& kernel, int threads, std::uint32_t seed, Reach& reach,
                               const Listener& listener) {
  ThreadPool one(1), several(threads);
  FaultReport faults;
  Results results(kernel);
  const std::vector<Isa> isas = isas_of(kernel);
  for (const Case& c : kernel.cases(seed)) {
    if (listener && kernel.table != nullptr) {
      const ScopedIsa cap(Isa::ref);
      faults.running(fmt::format("{} on ref, {} of {}", kernel.name, name_of(c.dtype), c.what));
      tell(listener, kernel, c, Run(c, one, false), "ref");
    }
    if (isas.empty()) continue;
    const Arrays expected = reference_of(kernel, c, several, faults);
    Listed before;
    for (const Isa isa : isas) {
      const ScopedIsa cap(isa);
      faults.running(
          fmt::format("{} up to {}, {} of {}", kernel.name, name_of(isa), name_of(c.dtype), c.what));
      const Run alone(c, one, false);
      const Listed ran = only_ran(alone.listed);
      reach.add(alone.listed);
      if (kernel.table != nullptr && ran == before) continue;
      before = ran;
      tell(listener, kernel, c, alone, "portable");
      const std::vector<std::size_t> of = results.of(alone.listed, c.dtype, "portable");
      const bool in_tiles =
          std::ranges::any_of(of, [&](std::size_t i) { return results[i].isa >= Isa::avx512_bf16; });
      bool pass = true;
      for (const std::size_t i : of) {
        ++results[i].cases;
        judge(c, alone, expected, threads_text(1), in_tiles, results[i]);
        pass &= results[i].pass();
      }
      if (!pass) continue;  // to write before a fence would end the process
      const Run together(c, several, true);
      for (const std::size_t i : of) {
        judge(c, together, expected, threads_text(threads), in_tiles, results[i]);
        if (results[i].pass() && together.outputs != alone.outputs)
          results[i].failure = fmt::format("{}: {} threads give other bits than one", c.what, threads);
      }
    }
  }
  return results.take();
}

std::vector<Result> run_kernel_on(Device& device, const KernelCases& kernel, std::uint32_t seed, Reach& reach,
                                  const Listener& listener) {
  Results results(kernel);
  if (kernel.on_host) return {};
  ThreadPool pool(1);
  FaultReport faults;
  for (const Case& c : kernel.cases(seed)) {
    const Arrays expected = reference_of(kernel, c, pool, faults);
    faults.running(fmt::format("{} on {}, {} of {}", kernel.name, device.name(), name_of(c.dtype), c.what));
    std::string failure;
    std::vector<std::size_t> of;
    try {
      const std::int64_t before = gpu::launches();
      const Run first(c, pool, device);
      reach.add(first.listed);
      tell(listener, kernel, c, first, device.name());
      of = results.of(first.listed, c.dtype, device.name());
      // Results of tensor cores are sums in another order, of products that are as exact.
      for (const std::size_t i : of) judge(c, first, expected, device.name(), true, results[i]);
      // None has to where an op has nothing to read or leaves everything as it was.
      const bool reads = std::ranges::any_of(c.inputs, [](const PoisonedArray& x) { return x.size() > 0; });
      const bool writes = !std::ranges::equal(
          expected, c.outputs, [](const PoisonedArray& x, const Output& y) { return x == y.start; });
      if (reads && writes && gpu::launches() == before)
        failure = fmt::format("{}: no kernel of the device ran", c.what);
      else if (Run(c, pool, device).outputs != first.outputs)
        failure = fmt::format("{}: a second run gives other bits", c.what);
    } catch (const Error& error) {  // an op without a kernel there
      failure = fmt::format("{}: {}", c.what, error.what());
      if (of.empty()) of = {results.of_device(device.name(), c.dtype)};
    }
    for (const std::size_t i : of) {
      ++results[i].cases;
      if (results[i].pass()) results[i].failure = failure;
    }
  }
  return results.take();
}

}  // namespace switchyard::selftest
