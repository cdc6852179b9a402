// Runs kernels on every instruction set, or on a GPU, and says how far each implementation is from the
// reference.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/registry/record.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {

// All cases of one implementation of a kernel with operands of one dtype.
struct Result {
  std::string kernel;
  std::string implementation;  // as in its table; "portable", or the device's name, where it has none
  Isa isa = Isa::ref;
  std::string dtype = {};  // empty where no case ran
  std::int64_t cases = 0;
  double max_abs = 0, max_rel = 0;  // the largest of all outputs (compare.h)
  std::string failure = {};         // the first, in a line; empty: none
  bool pass() const { return failure.empty(); }
};

// Collects which rows of which tables cases reached.
class Reach {
 public:
  void add(const std::vector<ListedKernel>& listed);
  // A failure for each row that this machine can run and no case reached, of the tables all of whose cases
  // were run: those that `all` names and `skipped` does not. References need not be reached.
  std::vector<Result> failures(std::span<const KernelCases> all, std::span<const KernelCases> run) const;

 private:
  std::map<std::pair<std::string, std::string>, ListedKernel> rows_;  // by table and implementation
};

// Runs each case with one thread between guards, and with `threads` before fences (poisoned_array.h), which
// must give the same bits, on every instruction set up to active_isa() on which other implementations are
// chosen than on the one before. Of each run it is expected that its outputs are within their bounds of the
// reference's, that nothing outside them was written, and that the inputs stayed. A case counts for each row
// of the kernel's table that ran. No results where `ref` is all that there is. A run that faults ends the
// process (fault.h).
std::vector<Result> run_kernel(const KernelCases& kernel, int threads, std::uint32_t seed, Reach& reach);

// Runs each case on memory of a GPU, or of an emulated one, twice, which must give the same bits, and
// compares the outputs with the reference's as above. A case of a kernel of the host's alone
// (KernelCases::on_host) is left out.
std::vector<Result> run_kernel_on(Device& device, const KernelCases& kernel, std::uint32_t seed,
                                  Reach& reach);

}  // namespace switchyard::selftest
