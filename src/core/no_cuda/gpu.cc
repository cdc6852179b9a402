// The GPU functions of a build without CUDA.
#include "core/gpu.h"

#include <chrono>

#include "core/error.h"
#include "core/graph_recording.h"

namespace switchyard::gpu {
namespace {

[[noreturn]] void no_gpu() {
  CHECK(false, "work for a GPU in a build without CUDA");
  std::abort();
}

}  // namespace

std::string missing() {
  return "this build has no CUDA: configure with -DSWITCHYARD_CUDA=ON (make cuda)";
}
Properties properties() {
  no_gpu();
}
std::byte* allocate(std::size_t) {
  no_gpu();
}
void release(std::byte*, std::size_t) {
  no_gpu();
}
void copy(void*, const void*, std::size_t) {
  no_gpu();
}
void move(void*, const void*, std::size_t) {
  no_gpu();
}
void fill_zero(void*, std::size_t) {
  no_gpu();
}
int device_index() {
  no_gpu();
}
void synchronize() {
  no_gpu();
}

namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Moment Moment::now() {
  Moment moment;
  moment.event_ = std::make_shared<Clock::time_point>(Clock::now());
  return moment;
}
Moment Moment::now_untimed() {
  return now();
}
void Moment::wait() const {
  forbid_in_graph("a wait for a moment");
}
bool Moment::has_come() const {
  forbid_in_graph("a question whether a moment has come");
  return true;
}
void Moment::hold_stream() const {}
double Moment::seconds_since(const Moment& from) const {
  const auto time = [](const Moment& x) { return *static_cast<const Clock::time_point*>(x.event_.get()); };
  return std::chrono::duration<double>(time(*this) - time(from)).count();
}

std::byte* allocate_host(std::size_t) {
  no_gpu();
}
void release_host(std::byte*, std::size_t) {
  no_gpu();
}
Transfer Transfer::start(void*, const void*, std::size_t) {
  no_gpu();
}
void Transfer::before_later_work() const {}
void finish_transfers() {
  no_gpu();
}

void* stream() {
  no_gpu();
}

}  // namespace switchyard::gpu
