// Copies in communicators, within one kind of memory.
#pragma once

#include "core/device.h"
#include "core/gpu.h"
#include "parallel/comm/bytes.h"

namespace switchyard {

// Within the memory of a GPU, in the order of its stream, or of the host where `device` is null. Nothing when
// there is nothing to copy, or nowhere to.
inline void move_bytes(const Device* device, void* to, const void* from, std::int64_t bytes) {
  if (device == nullptr || device->kind() != DeviceKind::cuda) return copy_bytes(to, from, bytes);
  if (bytes > 0 && to != from) gpu::move(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace switchyard
