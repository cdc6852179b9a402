#include "selftest/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "core/error.h"
#include "selftest/compare.h"

namespace switchyard::selftest {
namespace {

using Listed = std::vector<ListedKernel>;

Listed only_ran(const Listed& listed) {
  Listed ran;
  std::copy_if(listed.begin(), listed.end(), std::back_inserter(ran),
               [](const ListedKernel& k) { return k.ran; });
  return ran;
}

// What a run writes, and what it chose from.
struct Run {
  Run(const Case& c, ThreadPool& pool) {
    for (const Output& output : c.outputs) outputs.push_back(output.start);
    const DispatchRecord record;
    c.run(pool, c.inputs, outputs);
    listed = record.listed();
  }
  Arrays outputs;
  Listed listed;
};

class Runner {
 public:
  Runner(const Kernel& kernel, int threads) : kernel_(kernel), one_(1), many_(threads) {
    const Isa active = active_isa();
    if (kernel.op == nullptr) {
      isas_ = {active};
    } else {
      for (int i = 1; i <= static_cast<int>(active); ++i) isas_.push_back(static_cast<Isa>(i));
    }
  }

  void run(const Case& c) {
    if (isas_.empty()) return;
    const Arrays inputs = c.inputs, expected = twin_of(c);
    Listed before;
    for (const Isa isa : isas_) {
      const ScopedIsa cap(isa);
      const Run one(c, one_);
      const Listed ran = only_ran(one.listed);
      if (kernel_.op != nullptr && ran == before) continue;
      before = ran;
      Result& result = result_of(one.listed, c.dtype);
      ++result.cases;
      judge(c, one.outputs, expected, 1, result);
      const Run many(c, many_);
      judge(c, many.outputs, expected, many_.threads(), result);
      if (result.pass() && many.outputs != one.outputs)
        result.failure = fmt::format("{}: {} threads give other bits than one", c.what, many_.threads());
      if (result.pass() && c.inputs != inputs)
        result.failure = fmt::format("{}: an input was written to", c.what);
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
  Arrays twin_of(const Case& c) {
    const ScopedIsa cap(Isa::ref);
    if (!c.twin) return Run(c, many_).outputs;
    Arrays outputs;
    for (const Output& output : c.outputs) outputs.push_back(output.start);
    c.twin(c.inputs, outputs);
    return outputs;
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

  void judge(const Case& c, const Arrays& found, const Arrays& expected, int threads, Result& result) const {
    const bool in_tiles = result.isa >= Isa::avx512_bf16;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const Comparison x = compare(c.outputs[i], found[i], expected[i], in_tiles);
      take_larger(x.max_abs, result.max_abs);
      take_larger(x.max_rel, result.max_rel);
      if (result.pass() && !x.failure.empty())
        result.failure =
            fmt::format("{}, {} thread{}: {}", c.what, threads, threads == 1 ? "" : "s", x.failure);
    }
  }

  const Kernel& kernel_;
  ThreadPool one_, many_;
  std::vector<Isa> isas_;
  Listed listed_;  // of the kernel's op, in all runs
  std::vector<Result> results_;
};

}  // namespace

std::vector<Result> run_kernel(const Kernel& kernel, int threads, std::uint32_t seed) {
  Runner runner(kernel, threads);
  for (const Case& c : kernel.cases(seed)) runner.run(c);
  return runner.take_results();
}

std::vector<Kernel> kernels() {
  std::vector<Kernel> all;
  for (const auto& family :
       {gemm_kernels(), grouped_matmul_kernels(), ragged_rows_kernels(), elementwise_kernels(), row_kernels(),
        attention_kernels(), cross_entropy_kernels(), weight_update_kernels()})
    all.insert(all.end(), family.begin(), family.end());
  return all;
}

}  // namespace switchyard::selftest
