// HostMemory: holds one rank's GPU tensors in memory of the host, and copies them there and back while
// kernels run. For a real GPU that memory is pinned. For an emulated GPU it is ordinary memory, and a copy is
// done when it is started. For a planned GPU there are only sizes.
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

  // Uninitialised, and charged to account(). The host may read and write the tensor after finish().
  Tensor empty(DType dtype, const Shape& shape) const;
  // Starts to copy `from` (on the device) to `host` (in this memory), which has as many bytes. Nobody may
  // change `from` from now on. HostMemory keeps `from` alive until let_go.
  void send(const Tensor& from, const Tensor& host);
  // Releases all tensors sent so far: work issued from now on begins after those copies.
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

// A tensor that is being copied back to the device.
class ArrivingTensor {
 public:
  // Starts the copy, which begins when all work issued so far is done. `host` may be released at once.
  ArrivingTensor(const HostMemory& memory, const Tensor& host);
  ~ArrivingTensor() { transfer_.before_later_work(); }
  ArrivingTensor(ArrivingTensor&&) = default;
  ArrivingTensor& operator=(ArrivingTensor&&) = delete;
  // Work issued from now on may read and write the returned tensor.
  Tensor arrived() const;

 private:
  Tensor tensor_;
  gpu::Transfer transfer_;
};

}  // namespace switchyard
