// Runs kernels on every instruction set, or on a GPU, and
// reports how far each implementation is from the reference.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/registry/record.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {

// The result of all cases of one implementation of a kernel, for one operand dtype.
struct Result {
  std::string kernel;
  std::string implementation;  // name in the kernel's table; without a table "portable", or the device's name
  Isa isa = Isa::ref;
  std::string dtype = {};  // empty when no case ran
  std::int64_t cases = 0;
  double max_abs = 0, max_rel = 0;  // the largest over all outputs (compare.h)
  std::string failure = {};         // the first failure, in one line; empty: none
  bool pass() const { return failure.empty(); }
};

// Records which rows of the kernel tables the cases reached.
class Reach {
 public:
  void add(const std::vector<ListedKernel>& listed);
  // One failure for each table row that this machine can run and that no case reached. Only tables whose
  // cases were all run count: those that `all` names and `skipped` does not. References are exempt.
  std::vector<Result> failures(std::span<const KernelCases> all, std::span<const KernelCases> run) const;

 private:
  std::map<std::pair<std::string, std::string>, ListedKernel> rows_;  // key: table and implementation
};

// Hears what each row wrote of a case that it ran. `row` is "implementation dtype", with a + between the
// implementations where several rows of the table ran.
using Listener = std::function<void(const std::string& row, const Case& c, const Arrays& outputs)>;

// Runs each case on one thread between guards, and on `threads` threads before fences
// (poisoned_array.h); both must give the same bits. Uses every instruction set up to
// active_isa() that selects other implementations than the one before. Checks that outputs
// are within their bounds of the reference's, that nothing outside them was written, and
// that inputs are unchanged. A case counts for each table row that ran. Returns no results
// when only `ref` exists. A run that faults ends the process (fault.h). For a listener the table's row `ref`
// runs too, which has no result.
std::vector<Result> run_kernel(const KernelCases& kernel, int threads, std::uint32_t seed, Reach& reach,
                               const Listener& listener = {});

// Runs each case twice on memory of a GPU, real or emulated. Both runs must
// give the same bits, and outputs are compared with the reference's as above.
// Leaves out cases of kernels that only run on the host (KernelCases::on_host).
std::vector<Result> run_kernel_on(Device& device, const KernelCases& kernel, std::uint32_t seed, Reach& reach,
                                  const Listener& listener = {});

}  // namespace switchyard::selftest
