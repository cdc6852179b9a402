#include <atomic>
#include <utility>

#include "kernels/cuda/planned.h"
#include "kernels/cuda/portable.h"

namespace switchyard::gpu {
namespace {

std::atomic<std::int64_t> started{0};
thread_local const PlannedGpu* planned = nullptr;

}  // namespace

PlannedGpu::PlannedGpu(int major) : major_(major), before_(std::exchange(planned, this)) {}

PlannedGpu::~PlannedGpu() {
  planned = before_;
}

const PlannedGpu* PlannedGpu::of_thread() {
  return planned;
}

int compute_major() {
  if (planned != nullptr) return planned->major();
  static const int of_process = missing().empty() ? properties().major : 0;
  return of_process;
}

Started::Started() : log_(StreamLog::of_thread()) {
  started.fetch_add(1, std::memory_order_relaxed);
  if (log_ != nullptr) log_->begin();
}

Started::~Started() {
  if (log_ != nullptr) log_->end();
}

std::int64_t launches() {
  return started;
}

}  // namespace switchyard::gpu
