#include "core/memory_account.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <thread>

#include "core/current_memory.h"
#include "core/tensor.h"
#include "core/thread_pool.h"

namespace switchyard {
namespace {

TEST(MemoryAccount, CountsTheTensorsOfItsMemory) {
  const auto account = std::make_shared<MemoryAccount>();
  const Memory memory(Device::cpu(), account);
  Tensor outlives;
  {
    const Tensor a = memory.empty(DType::f32, {100});
    outlives = memory.empty(DType::f32, {10});
    { const Tensor b = memory.empty(DType::bf16, {50}); }
    const Tensor of_nobody(DType::f32, {1000}), shared = memory.uncharged().zeros(DType::f32, {1000});
    EXPECT_EQ(account->in_use(), 440);
    EXPECT_EQ(account->peak(), 540);
    account->reset_peak();
    EXPECT_EQ(account->peak(), 440);
    const Tensor copy = outlives.clone();  // in the same memory
    EXPECT_EQ(account->in_use(), 480);
  }
  EXPECT_EQ(account->in_use(), 40);
  outlives = Tensor();
  EXPECT_EQ(account->in_use(), 0);
}

TEST(MemoryAccount, ScratchIsChargedToTheScopeOfItsThread) {
  const auto account = std::make_shared<MemoryAccount>();
  {
    const MemoryScope scope(Memory(Device::cpu(), account));
    const Buffer scratch(100);
    std::thread([] { const Buffer elsewhere(1000); }).join();
    const UnchargedScope uncharged;
    const Buffer shared(1000);
    EXPECT_EQ(account->in_use(), 100);
  }
  EXPECT_EQ(current_account(), nullptr);
  EXPECT_EQ(account->in_use(), 0);
}

TEST(MemoryAccount, AbstractTensorsHaveASizeAndNoMemory) {
  const auto account = std::make_shared<MemoryAccount>();
  const std::size_t before = memory_in_use();
  const Tensor large = Memory(Device::abstract(), account).zeros(DType::f32, {1 << 20, 1 << 10});  // 4 GiB
  EXPECT_TRUE(large.abstract());
  EXPECT_EQ(account->in_use(), std::int64_t{4} << 30);
  EXPECT_EQ(memory_in_use(), before);
  EXPECT_EQ(large.clone().cast(DType::bf16).bytes(), std::size_t{2} << 30);
  EXPECT_DEATH(std::printf("%f", static_cast<double>(large.data<float>()[5])), "");
}

TEST(ThreadPool, AnAbstractOneCountsAndRunsNothing) {
  struct Counter : WorkCounter {
    double flops = 0;
    void count(const Work& work) override { flops += work.flops; }
  } counter;
  ThreadPool pool(counter, WorkspaceOf::none);
  pool.for_range(10, 1, [](std::int64_t, std::int64_t) { FAIL(); });
  EXPECT_TRUE(pool.skips({"test", DType::f32, 7, 1}));
  EXPECT_EQ(counter.flops, 7);
  EXPECT_FALSE(ThreadPool(1).skips({"test", DType::f32, 7, 1}));
}

}  // namespace
}  // namespace switchyard
