// The clock of an abstract rank that is being planned.
#pragma once

#include <algorithm>

#include "autograd/context.h"
#include "plan/planner.h"

namespace switchyard {

// Turns work and transfers into seconds, by layer and by the limiting resource.
// Only prefetches overlap with other work: a prefetch waits its turn on the links,
// and if it is unfinished when the rank needs it, the rank waits for the rest.
class PlanClock : public WorkCounter, public TransferClock {
 public:
  PlanClock(const Topology& topology, std::int64_t layers, StepPlan& plan)
      : topology_(topology), layers_(static_cast<std::size_t>(layers)), plan_(plan) {
    reset();
  }
  void reset() {
    plan_ = {};
    links_free_ = 0;
    plan_.layer_flops.assign(layers_, 0.0);
    plan_.layer_seconds = plan_.layer_flops;
  }
  void watch(const Position& position) { position_ = &position; }
  void count(const Work& work) override {
    const double compute = topology_.compute_seconds(work), memory = topology_.memory_seconds(work);
    (compute > memory ? plan_.compute_seconds : plan_.memory_seconds) += std::max(compute, memory);
    plan_.flops += work.flops;
    ++plan_.kernels;
    const double start = topology_.gpu_major > 0 ? 0 : topology_.kernel_start_seconds;
    plan_.start_seconds += start;
    add_seconds(std::max(compute, memory) + start);
    if (layer() >= 0) plan_.layer_flops[static_cast<std::size_t>(layer())] += work.flops;
  }
  double transfer(const Transfer& transfer) override { return wait(start(transfer)); }
  double start(const Transfer& transfer) override {
    links_free_ = std::max(links_free_, plan_.seconds()) + topology_.transfer_seconds(transfer);
    return links_free_;
  }
  double wait(double done) override {
    const double seconds = std::max(0.0, done - plan_.seconds());
    plan_.network_seconds += seconds;
    add_seconds(seconds);
    return seconds;
  }

 private:
  std::int64_t layer() const { return position_ == nullptr ? -1 : position_->layer.load(); }
  void add_seconds(double seconds) {
    if (layer() >= 0) plan_.layer_seconds[static_cast<std::size_t>(layer())] += seconds;
  }

  const Topology& topology_;
  const std::size_t layers_;
  const Position* position_ = nullptr;
  double links_free_ = 0;  // time when the last transfer ends
  StepPlan& plan_;
};

}  // namespace switchyard
