// HostMemory: where one rank's tensors of a GPU wait in memory of the host, and the copies there and back,
// beside kernels. On a GPU that memory is pinned; where a GPU is emulated it is ordinary memory, and a copy
// is done when it is started; where one is planned there are only sizes.
#pragma once

#include <memory>
#include <vector>

#include "core/gpu.h"
#include "core/tensor.h"

namespace switchyard {

class HostMemory {
 public:
  explicit HostMemory(const Memory& device);
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Uninitialised, and charged to account(). After finish() the host may read and write it.
  Tensor empty(DType dtype, const Shape& shape) const;
  // Starts to copy `from`, of the device, to `host`, of this memory: as many bytes, which nobody may change
  // from now on. `from` is held until let_go.
  void send(const Tensor& from, const Tensor& host);
  // Lets go of all that was sent so far: work given from now on begins after those copies.
  void let_go();
  // Returns when all copies are done.
  void finish();

  const Memory& device() const { return device_; }
  MemoryAccount& account() const { return *account_; }

 private:
  struct Sent {
    Tensor tensor;
    gpu::Transfer transfer;
  };
  const Memory device_;
  const std::shared_ptr<MemoryAccount> account_;
  std::vector<Sent> sent_;
};

// A tensor on its way back to the device.
class ArrivingTensor {
 public:
  // Starts the copy, which begins when all work given so far is done. `host` may be let go at once.
  ArrivingTensor(const HostMemory& memory, const Tensor& host);
  ~ArrivingTensor() { transfer_.before_later_work(); }
  ArrivingTensor(ArrivingTensor&&) = default;
  ArrivingTensor& operator=(ArrivingTensor&&) = delete;
  // Work given from now on may read and write it.
  Tensor arrived() const;

 private:
  Tensor tensor_;
  gpu::Transfer transfer_;
};

}  // namespace switchyard
