// Memory that a kernel works in: of the operands' device, charged to the rank that the thread runs. Given
// back at once when the object goes, for what still uses it comes before what gets it next.
#pragma once

#include "core/current_memory.h"
#include "core/tensor_view.h"

namespace switchyard::gpu {

class Workspace {
 public:
  // On the device of `like`, as many bytes; none allocate nothing.
  Workspace(const TensorView& like, std::size_t bytes)
      : device_(const_cast<Device&>(like.device())),
        bytes_(bytes),
        memory_(current_memory()),
        block_(bytes == 0 ? nullptr : device_.allocate(bytes)) {
    memory_.charge(static_cast<std::int64_t>(bytes_));
  }
  ~Workspace() {
    memory_.charge(-static_cast<std::int64_t>(bytes_));
    if (block_ != nullptr) device_.release(block_, bytes_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  template <typename T>
  T* data() const {
    return reinterpret_cast<T*>(block_ == nullptr ? nullptr : device_.kernel_address(block_));
  }
  TensorView view(DType dtype, const Shape& shape) const { return {dtype, shape, block_, device_}; }

 private:
  Device& device_;
  const std::size_t bytes_;
  const Memory memory_;  // what the bytes are charged to
  std::byte* const block_;
};

}  // namespace switchyard::gpu
