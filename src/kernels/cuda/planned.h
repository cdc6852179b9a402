// PlannedGpu: kernels of a GPU that take the memory they would work in, and start nothing.
#pragma once

namespace switchyard::gpu {

// While alive, this thread plans for a GPU of the compute capability major.*, whatever this machine has.
class PlannedGpu {
 public:
  explicit PlannedGpu(int major);
  ~PlannedGpu();
  PlannedGpu(const PlannedGpu&) = delete;
  PlannedGpu& operator=(const PlannedGpu&) = delete;

  static const PlannedGpu* of_thread();  // the innermost; null: this thread runs kernels
  int major() const { return major_; }

 private:
  const int major_;
  const PlannedGpu* const before_;
};

// Of the compute capability that kernels are chosen for: of the plan's GPU, or of this process's; 0 where a
// GPU is emulated.
int compute_major();

}  // namespace switchyard::gpu
