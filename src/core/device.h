// Device: a kind of memory that tensors live in, and the operations on it from outside of kernels.
//
// cpu       memory of this process.
// fenced    the same memory under addresses that fault when they are accessed. Kernels, copies and
//           collectives add an offset (kernel_offset) to reach the memory;
//           any other access faults. This device runs the CPU's kernels.
//           It proves, on any machine, that all code above kernels
//           would also run on memory that the host cannot reach.
// abstract  sizes without memory: `plan` runs the real program on it, and nothing is computed.
// abstract_gpu  the same for a GPU: its kernels allocate their workspace and start nothing.
// cuda      memory of a GPU (core/gpu.h), which only the GPU's kernels (kernels/*/cuda/) reach.
// cuda_emulated  the GPU's kernels, run by the CPU thread by thread, on memory whose addresses fault as
//           those of `fenced` do: proves what can be proven without a GPU.
//
// A Memory is one rank's part of a device: it makes tensors and charges them to the rank's account.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/memory_account.h"
#include "core/shape.h"

namespace switchyard {

class Tensor;
class Buffer;

enum class DeviceKind : std::uint8_t { cpu, fenced, abstract, abstract_gpu, cuda, cuda_emulated };

// A tensor's block of host memory.
struct HostBlock {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
};
// The block of a tensor of the CPU's device that has this address; an empty one where there is none. It knows
// the blocks that were made since Device::cuda_emulated() was first asked for: a kernel of the emulated GPU
// could read them, and a GPU's could not.
HostBlock host_block_of(const void* address);

class Device {
 public:
  static Device& cpu();
  static Device& fenced();
  static Device& abstract();
  static Device& abstract_gpu();
  static Device& cuda();
  static Device& cuda_emulated();
  // The device that the config key `device` names. Error(usage) for an unknown name, or for a device that
  // this machine or this build lacks.
  static Device& named(std::string_view name);
  static const std::vector<std::string>& names();  // the devices that a run may choose

  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  DeviceKind kind() const { return kind_; }
  std::string_view name() const;
  // True when the host may read and write this memory by its addresses.
  bool is_host() const { return kind_ == DeviceKind::cpu; }
  bool is_abstract() const { return kind_ == DeviceKind::abstract || kind_ == DeviceKind::abstract_gpu; }
  // True when kernels of a GPU do the work: on a real, an emulated or a planned GPU.
  bool is_gpu() const {
    return kind_ == DeviceKind::cuda || kind_ == DeviceKind::cuda_emulated ||
           kind_ == DeviceKind::abstract_gpu;
  }

  // Returns at least `bytes` bytes, 64-byte aligned, uninitialised. Error(runtime) when memory runs out.
  std::byte* allocate(std::size_t bytes);
  void release(std::byte* block, std::size_t bytes);  // `bytes`: the size passed to allocate()

  // The offset that a kernel adds to an address of this device before it reads or writes there.
  std::ptrdiff_t kernel_offset() const { return kernel_offset_; }
  // The address by which kernels, copies and collectives read and write the memory at `address`.
  std::byte* kernel_address(std::byte* address) const {
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(address) +
                                        static_cast<std::uintptr_t>(kernel_offset_));
  }

 private:
  Device(DeviceKind kind, std::ptrdiff_t kernel_offset) : kind_(kind), kernel_offset_(kernel_offset) {}
  const DeviceKind kind_;
  const std::ptrdiff_t kernel_offset_;
};

// One rank's part of a device. Copies denote the same part.
class Memory {
 public:
  // Memory of the host, charged to no rank.
  Memory() : device_(&Device::cpu()) {}
  // `account` may be null: then tensors are charged to no rank.
  Memory(Device& device, std::shared_ptr<MemoryAccount> account)
      : device_(&device), account_(std::move(account)) {}

  Device& device() const { return *device_; }
  const std::shared_ptr<MemoryAccount>& account() const { return account_; }
  // This device, charged to no rank: for buffers that ranks share or that outlive a step.
  Memory uncharged() const { return {*device_, nullptr}; }
  // Charges `bytes` without allocating: for buffers that several ranks share. Negative releases.
  void charge(std::int64_t bytes) const {
    if (account_ != nullptr) account_->charge(bytes);
  }
  // Bytes that the rank's tensors occupy now; 0 without an account.
  std::int64_t in_use() const { return account_ == nullptr ? 0 : account_->in_use(); }

  Tensor empty(DType dtype, const Shape& shape) const;  // uninitialised
  Tensor zeros(DType dtype, const Shape& shape) const;

 private:
  Device* device_;
  std::shared_ptr<MemoryAccount> account_;
};

}  // namespace switchyard
