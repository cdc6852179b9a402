#include "core/offload.h"

#include <utility>

namespace switchyard {
namespace {

// Pinned memory that is charged to the rank while it is held.
class PinnedBlock {
 public:
  PinnedBlock(std::shared_ptr<MemoryAccount> account, std::size_t bytes)
      : account_(std::move(account)), bytes_(bytes), data_(gpu::allocate_host(bytes)) {
    account_->charge(static_cast<std::int64_t>(bytes_));
  }
  ~PinnedBlock() {
    account_->charge(-static_cast<std::int64_t>(bytes_));
    gpu::release_host(data_, bytes_);
  }
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;
  std::span<const std::byte> bytes() const { return {data_, bytes_}; }

 private:
  const std::shared_ptr<MemoryAccount> account_;
  const std::size_t bytes_;
  std::byte* const data_;
};

gpu::Transfer start_transfer(const Memory& device, const TensorView& from, const TensorView& to) {
  CHECK(from.bytes() == to.bytes(), "{} bytes to {}", from.bytes(), to.bytes());
  if (device.device().kind() == DeviceKind::cuda)
    return gpu::Transfer::start(to.device_address(), from.device_address(), from.bytes());
  copy(from, to);
  return {};
}

}  // namespace

HostMemory::HostMemory(const Memory& device) : device_(device), account_(std::make_shared<MemoryAccount>()) {}

Tensor HostMemory::empty(DType dtype, const Shape& shape) const {
  const Device& device = device_.device();
  if (device.is_abstract()) return Memory(Device::abstract(), account_).empty(dtype, shape);
  if (device.kind() != DeviceKind::cuda) return Memory(Device::cpu(), account_).empty(dtype, shape);
  const auto bytes = static_cast<std::size_t>(num_elements(shape)) * size_of(dtype);
  const auto block = std::make_shared<const PinnedBlock>(account_, bytes);
  return {dtype, shape, std::make_shared<Buffer>(block, block->bytes())};
}

void HostMemory::send(const Tensor& from, const Tensor& host) {
  sent_.push_back({from, start_transfer(device_, from.view(), host.view())});
}

void HostMemory::let_go() {
  for (const Sent& sent : sent_) sent.transfer.before_later_work();
  sent_.clear();
}

void HostMemory::finish() {
  if (device_.device().kind() == DeviceKind::cuda) gpu::finish_transfers();
  sent_.clear();
}

ArrivingTensor::ArrivingTensor(const HostMemory& memory, const Tensor& host)
    : tensor_(memory.device().empty(host.dtype(), host.shape())),
      transfer_(start_transfer(memory.device(), host.view(), tensor_.view())) {}

Tensor ArrivingTensor::arrived() const {
  transfer_.before_later_work();
  return tensor_;
}

}  // namespace switchyard
