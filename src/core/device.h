// Device: a kind of memory that tensors live in, and what may be done with it from outside of kernels.
//
// cpu       memory of this process.
// fenced    the same memory under addresses that no access survives. Kernels, copies and collectives know the
// way
//           back (kernel_offset); whoever else follows such an address faults. It runs the CPU's kernels and
//           proves, on any machine, that everything above them would run on memory that the host cannot
//           reach.
// abstract  sizes without memory: `plan` runs the real program on it, and nothing is computed.
// abstract_gpu  the same for a GPU: its kernels take the memory that they work in, and start nothing.
// cuda      memory of a GPU (core/gpu.h), which only its own kernels (kernels/*/cuda/) reach.
// cuda_emulated  the same kernels, run by the CPU thread by thread, on memory under addresses as `fenced` has
//           them: what a machine without a GPU can prove.
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

class Device {
 public:
  static Device& cpu();
  static Device& fenced();
  static Device& abstract();
  static Device& abstract_gpu();
  static Device& cuda();
  static Device& cuda_emulated();
  // The device that the config key `device` names. Error(usage) for a word that names none, or one that this
  // machine or this build lacks.
  static Device& named(std::string_view name);
  static const std::vector<std::string>& names();  // of those that a run may choose

  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  DeviceKind kind() const { return kind_; }
  std::string_view name() const;
  // Whether the host may read and write this memory by its addresses.
  bool is_host() const { return kind_ == DeviceKind::cpu; }
  bool is_abstract() const { return kind_ == DeviceKind::abstract || kind_ == DeviceKind::abstract_gpu; }
  // Whether kernels of a GPU do the work: on a GPU, emulated or only planned.
  bool is_gpu() const {
    return kind_ == DeviceKind::cuda || kind_ == DeviceKind::cuda_emulated ||
           kind_ == DeviceKind::abstract_gpu;
  }

  // At least `bytes` bytes, 64-byte aligned, uninitialised. Error(runtime) when there is no memory.
  std::byte* allocate(std::size_t bytes);
  void release(std::byte* block, std::size_t bytes);  // the size it was allocated with

  // What a kernel adds to an address of this device before it reads or writes there.
  std::ptrdiff_t kernel_offset() const { return kernel_offset_; }
  // Where kernels, copies and collectives read and write what lies at `address`.
  std::byte* kernel_address(std::byte* address) const {
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(address) +
                                        static_cast<std::uintptr_t>(kernel_offset_));
  }

 private:
  Device(DeviceKind kind, std::ptrdiff_t kernel_offset) : kind_(kind), kernel_offset_(kernel_offset) {}
  const DeviceKind kind_;
  const std::ptrdiff_t kernel_offset_;
};

// One rank's part of a device. A copy is the same part.
class Memory {
 public:
  // Of the host, charged to nobody.
  Memory() : device_(&Device::cpu()) {}
  // `account` may be null: tensors are charged to nobody.
  Memory(Device& device, std::shared_ptr<MemoryAccount> account)
      : device_(&device), account_(std::move(account)) {}

  Device& device() const { return *device_; }
  const std::shared_ptr<MemoryAccount>& account() const { return account_; }
  // The same device, charged to nobody: for what ranks share, and for what no step holds.
  Memory uncharged() const { return {*device_, nullptr}; }
  // Of what is not a tensor of this memory: a rank's use of what ranks share. Negative gives back.
  void charge(std::int64_t bytes) const {
    if (account_ != nullptr) account_->charge(bytes);
  }
  // Bytes that the rank's tensors take now; 0 without an account.
  std::int64_t in_use() const { return account_ == nullptr ? 0 : account_->in_use(); }

  Tensor empty(DType dtype, const Shape& shape) const;  // uninitialised
  Tensor zeros(DType dtype, const Shape& shape) const;

 private:
  Device* device_;
  std::shared_ptr<MemoryAccount> account_;
};

}  // namespace switchyard
