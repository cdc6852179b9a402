// PlannedGpu: kernels of a GPU that take the memory they would work in, and start nothing.
#pragma once

#include <cstdint>

namespace switchyard::gpu {

// Counts the kernels that this process has started.
std::int64_t launches();

// While alive, this thread plans for a GPU of the compute capability major.*, whatever this machine has.
class PlannedGpu {
 public:
  explicit PlannedGpu(int major);
  ~PlannedGpu();
  PlannedGpu(const PlannedGpu&) = delete;
  PlannedGpu& operator=(const PlannedGpu&) = delete;

  // Returns whether this thread plans. Then the innermost plan counts so many kernels, which
  // the caller must not start.
  static bool skips(std::int64_t kernels);
  int major() const { return major_; }
  std::int64_t kernels() const { return kernels_; }  // that would have been started

 private:
  const int major_;
  PlannedGpu* const before_;
  std::int64_t kernels_ = 0;
};

// The major number of the compute capability that kernels are chosen for: the planned GPU's, or this
// process's GPU's. Of an emulated GPU 0, or 9 with SWITCHYARD_EMULATED_CARD=hopper.
int compute_major();
// True when this thread chooses kernels for a card, real or planned, and not for an emulated one.
bool chooses_for_a_card();
// The multiprocessors of this process's GPU; an emulated GPU has four.
int multiprocessors();

}  // namespace switchyard::gpu
