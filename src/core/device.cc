#include "core/device.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <mutex>

#include "core/buffer_pool.h"
#include "core/error.h"
#include "core/gpu.h"
#include "core/graph_arena.h"
#include "core/messages.h"

namespace switchyard {
namespace {

// Bit 55 of an address belongs to no memory of a program on any processor that this runs on: with 48-bit
// addresses it makes the address invalid (x86-64) or one of the kernel's (AArch64), with 57-bit ones it lies
// far above what the system hands out unasked.
constexpr std::ptrdiff_t kFence = std::ptrdiff_t{1} << 55;

#if defined(SWITCHYARD_CUDA)
constexpr bool kEmulatesGpu = false;
#else
constexpr bool kEmulatesGpu = true;
#endif

// The process's tensor memory. Never destroyed: threads may free tensors until the very end.
BufferPool& pool() {
  static BufferPool* const instance = new BufferPool;
  return *instance;
}

// The address of all abstract buffers: no access to it survives. No range is reserved: a limit of the address
// space could refuse the range, and then no plan could say that a model does not fit.
std::byte* abstract_address() {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(kFence));
}

// The blocks of the CPU's tensors, from the moment on that a GPU is emulated.
class HostBlocks {
 public:
  void watch() { watched_ = true; }
  void add(const std::byte* block, std::size_t bytes) {
    if (!watched_ || bytes == 0) return;
    const std::lock_guard lock(mutex_);
    blocks_[block] = bytes;
  }
  void drop(const std::byte* block) {
    if (!watched_) return;
    const std::lock_guard lock(mutex_);
    blocks_.erase(block);
  }
  HostBlock of(const std::byte* address) {
    const std::lock_guard lock(mutex_);
    const auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) return {};
    const auto& [begin, bytes] = *std::prev(after);
    return address < begin + bytes ? HostBlock{begin, bytes} : HostBlock{};
  }

 private:
  std::atomic<bool> watched_{false};
  std::mutex mutex_;
  std::map<const std::byte*, std::size_t> blocks_;
};

HostBlocks& host_blocks() {
  static HostBlocks* const instance = new HostBlocks;
  return *instance;
}

std::byte* shifted(std::byte* address, std::ptrdiff_t by) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(address) +
                                      static_cast<std::uintptr_t>(by));
}

}  // namespace

Device& Device::cpu() {
  static Device device(DeviceKind::cpu, 0);
  return device;
}

Device& Device::fenced() {
  static Device device(DeviceKind::fenced, -kFence);
  return device;
}

Device& Device::abstract() {
  static Device device(DeviceKind::abstract, 0);
  return device;
}

Device& Device::abstract_gpu() {
  static Device device(DeviceKind::abstract_gpu, 0);
  return device;
}

Device& Device::cuda() {
  static Device device(DeviceKind::cuda, 0);
  return device;
}

Device& Device::cuda_emulated() {
  static Device device(DeviceKind::cuda_emulated, -kFence);
  host_blocks().watch();
  return device;
}

const std::vector<std::string>& Device::names() {
  static const std::vector<std::string> names{"cpu", "fenced", "cuda", "cuda_emulated", "auto"};
  return names;
}

Device& Device::named(std::string_view name) {
  if (name == "cpu") return cpu();
  if (name == "fenced") return fenced();
  if (name == "auto") {
    const std::string missing = gpu::missing();
    if (missing.empty()) return cuda();
    static std::once_flag said;
    std::call_once(said, [&] { say("switchyard: [device] device=auto: the CPU; {}", missing); });
    return cpu();
  }
  if (name == "cuda") {
    if (const std::string missing = gpu::missing(); !missing.empty())
      fail_usage("[device] device=cuda: {}", missing);
    return cuda();
  }
  if (name == "cuda_emulated") {
    if (!kEmulatesGpu)
      fail_usage("[device] device=cuda_emulated: this build's kernels are a GPU's; configure without CUDA");
    return cuda_emulated();
  }
  fail_usage("[device] device={}: expected one of {}", name, fmt::join(names(), ", "));
}

std::string_view Device::name() const {
  switch (kind_) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::fenced:
      return "fenced";
    case DeviceKind::abstract:
      return "abstract";
    case DeviceKind::abstract_gpu:
      return "abstract_gpu";
    case DeviceKind::cuda:
      return "cuda";
    case DeviceKind::cuda_emulated:
      return "cuda_emulated";
  }
  return "";
}

std::byte* Device::allocate(std::size_t bytes) {
  if (is_abstract()) return abstract_address();
  if (is_gpu()) {
    if (std::byte* const block = gpu::GraphArena::allocate(*this, bytes)) return block;
  }
  if (kind_ == DeviceKind::cuda) return gpu::allocate(bytes);
  std::byte* const block = pool().take(bytes);
  if (is_host()) host_blocks().add(block, bytes);
  return shifted(block, -kernel_offset_);
}

void Device::release(std::byte* block, std::size_t bytes) {
  if (is_abstract() || (is_gpu() && gpu::GraphArena::take_back(block))) return;
  if (kind_ == DeviceKind::cuda) return gpu::release(block, bytes);
  if (is_host()) host_blocks().drop(block);
  pool().give(shifted(block, kernel_offset_), bytes);
}

HostBlock host_block_of(const void* address) {
  return host_blocks().of(static_cast<const std::byte*>(address));
}

std::size_t memory_in_use() {
  return pool().in_use();
}
std::size_t memory_peak() {
  return pool().peak();
}
void reset_memory_peak() {
  pool().reset_peak();
}
std::size_t memory_reserved() {
  return pool().idle();
}
std::size_t memory_extent() {
  return pool().extent();
}

}  // namespace switchyard
