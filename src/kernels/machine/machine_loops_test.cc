#include "kernels/machine/machine_loops.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "core/tensor.h"
#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

constexpr std::int64_t kBytes = 3 * 8192;

Tensor counted() {
  Tensor t(DType::u8, {kBytes});
  std::iota(t.span<std::uint8_t>().begin(), t.span<std::uint8_t>().end(), std::uint8_t{3});
  return t;
}

TEST(MachineLoops, CopyAndUpdateTouchWhatTheyAreGiven) {
  for (const Isa isa : kernel_test::every_isa()) {
    const ScopedIsa cap(isa);
    const Tensor from = counted(), to = Tensor::zeros(DType::u8, {kBytes});
    copy_loop(from.raw() + 512, to.raw() + 512, kBytes - 1024);
    for (std::int64_t i = 0; i < kBytes; ++i) {
      const bool inside = i >= 512 && i < kBytes - 512;
      ASSERT_EQ(to.data<std::uint8_t>()[i], inside ? from.data<std::uint8_t>()[i] : 0) << name_of(isa) << i;
    }
    update_loop(to.raw() + 512, kBytes - 1024);
    for (std::int64_t i = 0; i < kBytes; ++i) {
      const bool inside = i >= 512 && i < kBytes - 512;
      ASSERT_EQ(to.data<std::uint8_t>()[i], inside ? from.data<std::uint8_t>()[i] ^ 0x55 : 0);
    }
  }
}

TEST(MachineLoops, ReadingDependsOnTheBytes) {
  for (const Isa isa : kernel_test::every_isa()) {
    const ScopedIsa cap(isa);
    const Tensor t = counted();
    const std::uint64_t before = read_loop(t.raw(), kBytes);
    t.data<std::uint8_t>()[kBytes - 64] ^= 1;
    EXPECT_NE(read_loop(t.raw(), kBytes), before) << name_of(isa);
  }
}

TEST(MachineLoops, EveryProductLoopRuns) {
  for (const Isa isa : kernel_test::every_isa()) {
    const ScopedIsa cap(isa);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto loops = product_loops(dtype);
      ASSERT_FALSE(loops.empty());
      for (const ProductLoop& loop : loops) {
        EXPECT_GT(loop.flops, 0) << loop.instruction;
        loop.run(3);
      }
    }
  }
}

TEST(MachineLoops, StoredTilesAreZero) {
  if (machine_isa() < Isa::amx) GTEST_SKIP() << "this machine has no AMX";
  const ScopedIsa cap(Isa::amx);
  const Tensor t = counted();
  tile_load_loop(t.raw(), 8192, 2);
  tile_store_loop(t.raw() + 8192, 8192, 2);
  for (std::int64_t i = 0; i < kBytes; ++i) {
    const bool stored = i >= 8192 && i < 2 * 8192;
    ASSERT_EQ(t.data<std::uint8_t>()[i], stored ? 0 : static_cast<std::uint8_t>(i + 3)) << i;
  }
}

}  // namespace
}  // namespace switchyard
