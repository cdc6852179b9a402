// Copies within one kind of memory, for communicators.
#pragma once

#include "core/device.h"
#include "core/gpu.h"
#include "parallel/comm/bytes.h"

namespace switchyard {

// Copies within a GPU's memory, in the order of its stream, or within the host's if `device` is null. Does
// nothing when there are no bytes, or `to` equals `from`.
inline void move_bytes(const Device* device, void* to, const void* from, std::int64_t bytes) {
  if (device == nullptr || device->kind() != DeviceKind::cuda) return copy_bytes(to, from, bytes);
  if (bytes > 0 && to != from) gpu::move(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace switchyard
