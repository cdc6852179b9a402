// Runs kernels on every instruction set, and says how far each implementation is from the scalar twin.
#pragma once

#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "selftest/kernel.h"

namespace switchyard::selftest {

// All cases of one implementation of a kernel with operands of one dtype.
struct Result {
  std::string kernel;
  std::string implementation;  // as in its op's list; "portable" where there is none
  Isa isa = Isa::ref;
  std::string dtype = {};  // empty where no case ran
  std::int64_t cases = 0;
  double max_abs = 0, max_rel = 0;  // the largest of all outputs (compare.h)
  std::string failure = {};         // the first, in a line; empty: none
  bool pass() const { return failure.empty(); }
};

// Runs each case with one thread between guards, and with `threads` before fences (poisoned_array.h), which
// must give the same bits, on every instruction set up to active_isa() on which other implementations are
// chosen than on the one before. Of each run it is expected that its outputs are within their bounds of the
// twin's, that nothing outside them was written, and that the inputs stayed; and of all cases, that they
// reach every implementation that is listed for these instruction sets. No results where `ref` is all that
// there is. A run that faults ends the process (fault.h).
std::vector<Result> run_kernel(const Kernel& kernel, int threads, std::uint32_t seed);

// Runs each case on memory of a GPU, or of an emulated one, twice, which must give the same bits, and
// compares the outputs with the twin's as above. A case of a kernel of the host's alone (Kernel::on_host) is
// left out.
std::vector<Result> run_kernel_on(Device& device, const Kernel& kernel, std::uint32_t seed);

}  // namespace switchyard::selftest
