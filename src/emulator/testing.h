// For tests of kernels on the emulator: in which order threads run, and when copies and products end.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "core/device.h"
#include "core/tensor_view.h"
#include "emulator/async.h"

namespace switchyard::gpu::emulator {

// Holds for the emulator's runs while it is alive.
class Timing {
 public:
  Timing(Order order, Pace pace, bool proxies = false) {
    set_order(order);
    set_pace(pace);
    set_proxies_checked(proxies);
  }
  ~Timing() {
    set_order(Order::forward);
    set_pace(Pace::late);
    set_proxies_checked(false);
  }
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;
};

template <typename Body>
void in_all_timings(const Body& body) {
  for (const Order order : {Order::forward, Order::reverse, Order::random}) {
    for (const Pace pace : {Pace::late, Pace::early, Pace::random}) {
      const Timing now(order, pace);
      SCOPED_TRACE(fmt::format("order {}, pace {}", static_cast<int>(order), static_cast<int>(pace)));
      body();
    }
  }
}

// The vector's memory as the emulated GPU's, so that kernels take their workspaces from there, too.
template <typename T>
TensorView on_gpu(const std::vector<T>& values, const Shape& shape) {
  Device& gpu = Device::cuda_emulated();
  auto* const address = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(values.data()));
  return {dtype_of<T>::value, shape, address - gpu.kernel_offset(), gpu};
}

}  // namespace switchyard::gpu::emulator
