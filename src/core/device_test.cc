#include "core/device.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>

#include "core/tensor.h"

namespace switchyard {
namespace {

Tensor numbers(std::int64_t count) {
  Tensor host(DType::f32, {count});
  std::iota(host.span<float>().begin(), host.span<float>().end(), 0.0f);
  return host;
}

TEST(Device, IsNamedByTheConfigKey) {
  EXPECT_EQ(&Device::named("cpu"), &Device::cpu());
  EXPECT_EQ(&Device::named("fenced"), &Device::fenced());
  EXPECT_THROW(Device::named("abstract"), Error);
}

TEST(FencedDevice, WhatGoesUpComesBack) {
  const Memory memory(Device::fenced(), nullptr);
  const Tensor host = numbers(100), there = to_device(memory, host), back = to_host(there.clone());
  EXPECT_EQ(&there.memory().device(), &Device::fenced());
  EXPECT_TRUE(back.memory().device().is_host());
  EXPECT_TRUE(std::equal(host.span<float>().begin(), host.span<float>().end(), back.span<float>().begin()));
  EXPECT_EQ(to_host(there.slice_rows(40, 50)).span<float>()[3], 43.0f);
  EXPECT_EQ(there.view().rows(40, 50).kernel_data<float>()[3], 43.0f) << "kernels know the way";
}

TEST(FencedDevice, TheHostIsRefused) {
  const Tensor there = to_device(Memory(Device::fenced(), nullptr), numbers(4));
  EXPECT_THROW(there.raw(), HostAccess);
  EXPECT_THROW(there.data<float>(), HostAccess);
  EXPECT_THROW(there.span<float>(), HostAccess);
}

// Code that bypasses Tensor cannot read the memory either.
TEST(FencedDevice, ItsAddressesCannotBeFollowed) {
  const Tensor there = to_device(Memory(Device::fenced(), nullptr), numbers(4));
  const volatile float* const address = reinterpret_cast<const float*>(there.buffer()->data());
  EXPECT_DEATH(std::printf("%f", static_cast<double>(*address)), "");
}

}  // namespace
}  // namespace switchyard
