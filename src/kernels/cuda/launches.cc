#include <atomic>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "core/graph.h"
#include "kernels/cuda/planned.h"
#include "kernels/cuda/portable.h"

namespace switchyard::gpu {
namespace {

std::atomic<std::int64_t> started{0};
thread_local PlannedGpu* planned = nullptr;

int emulated_major() {
  const char* const text = std::getenv("SWITCHYARD_EMULATED_CARD");
  if (text == nullptr) return 0;
  if (std::string_view(text) == "hopper") return 9;
  fail_usage("[emulator] SWITCHYARD_EMULATED_CARD={}: expected hopper", text);
}

}  // namespace

PlannedGpu::PlannedGpu(int major) : major_(major), before_(std::exchange(planned, this)) {}

PlannedGpu::~PlannedGpu() {
  planned = before_;
}

bool PlannedGpu::skips(std::int64_t kernels) {
  if (planned != nullptr) planned->kernels_ += kernels;
  return planned != nullptr;
}

int compute_major() {
  if (planned != nullptr) return planned->major();
  static const int of_process = missing().empty() ? properties().major : emulated_major();
  return of_process;
}

bool chooses_for_a_card() {
  static const bool is_there = missing().empty();
  return planned != nullptr || is_there;
}

int multiprocessors() {
  constexpr int kEmulated = 4;
  static const int of_process = missing().empty() ? properties().multiprocessors : kEmulated;
  return of_process;
}

Started::Started() : log_(StreamLog::of_thread()) {
  if (GraphRecording::of_thread() == nullptr) started.fetch_add(1, std::memory_order_relaxed);
  if (log_ != nullptr) log_->begin();
}

Started::~Started() {
  if (log_ != nullptr) log_->end();
}

std::int64_t launches() {
  return started + kernels_of_graphs();
}

}  // namespace switchyard::gpu
