// StepUpload: memory of a GPU at one address that the host fills anew before each step, by one copy from
// pinned memory that the host does not wait for.
#pragma once

#include "core/gpu.h"
#include "core/offload.h"
#include "core/tensor.h"

namespace switchyard {

class StepUpload {
 public:
  // On the memory's device, which is a GPU: real, emulated or planned. Charged there.
  StepUpload(const Memory& memory, std::size_t bytes)
      : pinned_(memory),
        host_(pinned_.empty(DType::i32, {words(bytes)})),
        there_(memory.empty(DType::i32, {words(bytes)})) {}

  // The host's bytes, to be written before start(); null for a planned GPU. Waits for the copy before.
  std::byte* host() const {
    if (is_real()) copied_.wait();
    return host_.abstract() ? nullptr : host_.raw();
  }
  // Copies them all. Work issued from now on sees them.
  void start() {
    if (!is_real()) return copy(host_.view(), there_.view());
    gpu::Transfer::start(there_.view().device_address(), host_.raw(), host_.bytes()).before_later_work();
    copied_ = gpu::Moment::now_untimed();
  }
  // A part of the memory there.
  Tensor part(DType dtype, const Shape& shape, std::size_t offset_bytes) const {
    return {dtype, shape, there_.buffer(), offset_bytes};
  }

 private:
  static std::int64_t words(std::size_t bytes) { return static_cast<std::int64_t>((bytes + 3) / 4); }
  bool is_real() const { return there_.memory().device().kind() == DeviceKind::cuda; }

  HostMemory pinned_;
  const Tensor host_, there_;
  gpu::Moment copied_ = is_real() ? gpu::Moment::now_untimed() : gpu::Moment();
};

}  // namespace switchyard
