// Graphs of an emulated GPU: what is recorded gives the bits of what runs at once, keeps to its own memory,
// and holds nothing of the host.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/fence.h"
#include "core/graph_cache.h"
#include "core/stream_log.h"
#include "core/tensor.h"
#include "kernels/cuda/portable.h"

namespace switchyard::gpu {
namespace {

constexpr std::int64_t kCount = 1000;

Memory device() {
  return {Device::cuda_emulated(), nullptr};
}

float* floats(const Tensor& x) {
  return x.view().device_data<float>();
}

GPU_KERNEL multiply(const float* x, const float* y, float* to, std::int64_t count) {
  const std::int64_t i = block_index() * thread_count() + thread_index();
  if (i < count) to[i] = x[i] * y[i] + 0.25f;
}

GPU_KERNEL add_to(const float* x, float* to, std::int64_t count) {
  const std::int64_t i = block_index() * thread_count() + thread_index();
  if (i < count) to[i] += x[i] * 0.5f;
}

Launch over(std::int64_t count) {
  return {.blocks = divide_up(count, 256), .threads = 256};
}

void set(const Tensor& x, int seed) {
  Tensor host(Memory(), DType::f32, x.shape());
  for (std::int64_t i = 0; i < x.size(); ++i)
    host.data<float>()[i] = static_cast<float>((i * 7 + seed * 13) % 101) / 64.0f - 0.5f;
  copy(host.view(), x.view());
}

std::vector<float> values(const Tensor& x) {
  const Tensor host = to_host(x);
  return {host.span<float>().begin(), host.span<float>().end()};
}

// A step with temporary memory of several sizes, a fill, a move, and state that it carries on.
struct Step {
  Tensor input = device().zeros(DType::f32, {kCount}), state = device().zeros(DType::f32, {kCount});

  Tensor run() const {
    Tensor product(device(), DType::f32, {kCount});
    launch(over(kCount), multiply, floats(input), floats(state), floats(product), kCount);
    const Tensor sum = device().zeros(DType::f32, {2 * kCount});
    launch(over(kCount), add_to, floats(product), floats(sum), kCount);
    product = sum.slice_rows(0, kCount).clone();
    launch(over(kCount), add_to, floats(product), floats(state), kCount);
    Tensor result(device(), DType::f32, {kCount});
    launch(over(kCount), multiply, floats(product), floats(sum), floats(result), kCount);
    return result;
  }
};

// Fills free memory of the device with NaN.
void poison() {
  std::vector<Tensor> all;
  for (std::int64_t bytes = 64; bytes <= (1 << 16); bytes += bytes / 4) {
    for (int i = 0; i < 8; ++i) {
      all.emplace_back(device(), DType::i32, Shape{bytes / 4});
      std::memset(all.back().view().device_address(), 0xff, all.back().bytes());
    }
  }
}

class OneSetting {
 public:
  OneSetting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~OneSetting() { unsetenv(name_); }
  OneSetting(const OneSetting&) = delete;
  OneSetting& operator=(const OneSetting&) = delete;

 private:
  const char* const name_;
};

TEST(EmulatorGraph, ReplaysToTheBit) {
  const Step eager, replayed;
  GraphCache cache(Device::cuda_emulated(), "step");
  std::vector<GraphCache::Way> ways;
  for (int step = 0; step < 50; ++step) {
    set(eager.input, step);
    set(replayed.input, step);
    poison();
    const Tensor expected = eager.run();
    const std::int64_t before = launches();
    const Tensor found = cache.run<Tensor>("step", [&] { return replayed.run(); });
    EXPECT_EQ(launches() - before, 4) << step;
    ways.push_back(cache.last_way());
    ASSERT_EQ(values(found), values(expected)) << step;
    ASSERT_EQ(values(replayed.state), values(eager.state)) << step;
  }
  EXPECT_EQ(ways[0], GraphCache::Way::eager);
  EXPECT_EQ(ways[1], GraphCache::Way::recorded);
  for (std::size_t i = 2; i < ways.size(); ++i) EXPECT_EQ(ways[i], GraphCache::Way::replayed);
  EXPECT_EQ(cache.graphs(), 1u);
  EXPECT_GE(cache.arena_bytes(), 4u * 4 * kCount);
}

TEST(EmulatorGraph, RunsNothingWhileItIsRecorded) {
  const Step step;
  set(step.input, 1);
  const auto arena = std::make_shared<GraphArena>(Device::cuda_emulated());
  Graph graph(Device::cuda_emulated(), arena);
  Tensor result;
  EXPECT_EQ(graph.record([&] { result = step.run(); }), "");
  EXPECT_EQ(values(step.state), std::vector<float>(kCount, 0.0f));
  EXPECT_EQ(graph.kernels(), 4);
  graph.launch();
  const Step other;
  set(other.input, 1);
  EXPECT_EQ(values(result), values(other.run()));
}

// The blocks of a graph are nobody else's while it lives, and the device's after it and who holds them.
TEST(EmulatorGraph, ArenaKeepsItsBlocks) {
  Tensor held;
  const std::size_t before = memory_in_use();
  {
    GraphArena arena(Device::cuda_emulated());
    const std::byte* first = nullptr;
    {
      const GraphArena::Use use(arena);
      const Tensor x(device(), DType::f32, {kCount});
      first = x.view().device_address();
    }
    const Tensor outside(device(), DType::f32, {kCount});
    EXPECT_NE(outside.view().device_address(), first);
    const GraphArena::Use use(arena);
    held = Tensor(device(), DType::f32, {kCount});
    EXPECT_EQ(held.view().device_address(), first);
    const Tensor host(Memory(), DType::f32, {kCount});  // of the host, not of the arena
    EXPECT_LT(arena.bytes(), 8u * kCount);
  }
  EXPECT_GT(memory_in_use(), before);
  held = Tensor();
  EXPECT_EQ(memory_in_use(), before);
}

// The reason names the op that does what a graph cannot hold, and the key goes on without a graph.
TEST(EmulatorGraph, NamesWhatItCannotHold) {
  const Tensor x = device().zeros(DType::f32, {kCount});
  const auto reason_of = [&](const std::function<void()>& body) {
    GraphCache cache(Device::cuda_emulated(), "a test's body");
    int runs = 0;
    for (int i = 0; i < 4; ++i)
      cache.run<int>("key", [&] {
        const std::string_view outside = exchange_running_op("count_rows");
        try {
          body();
        } catch (...) {
          exchange_running_op(outside);
          throw;
        }
        exchange_running_op(outside);
        return ++runs;
      });
    EXPECT_GE(runs, 4);
    EXPECT_EQ(cache.last_way(), GraphCache::Way::eager);
    EXPECT_EQ(cache.graphs(), 0u);
    return cache.reason();
  };
  const std::string copy_refused = "[graph] count_rows: a graph cannot hold a copy to the host or from it";
  EXPECT_EQ(reason_of([&] { to_host(x); }), copy_refused);
  EXPECT_EQ(reason_of([&] { set(x, 0); }), copy_refused);
  EXPECT_EQ(reason_of([&] { Moment::now().wait(); }),
            "[graph] count_rows: a graph cannot hold a wait for a moment");
  EXPECT_EQ(reason_of([&] { static_cast<void>(Moment::now().has_come()); }),
            "[graph] count_rows: a graph cannot hold a question whether a moment has come");
  Tensor outside(device(), DType::f32, {kCount});
  EXPECT_EQ(reason_of([&] { outside = Tensor(device(), DType::f32, {kCount}); }),
            "[graph] count_rows: a graph cannot release memory that it did not allocate");
}

TEST(EmulatorGraph, TheOneNotUsedGoes) {
  const Step step;
  set(step.input, 1);
  GraphCache cache(Device::cuda_emulated(), "step");
  const auto run = [&](int key) {
    cache.run<Tensor>(std::to_string(key), [&] { return step.run(); });
    return cache.last_way();
  };
  const auto keys = static_cast<int>(GraphCache::kGraphs);
  for (int key = 0; key < keys; ++key) {
    EXPECT_EQ(run(key), GraphCache::Way::eager);
    EXPECT_EQ(run(key), GraphCache::Way::recorded);
  }
  EXPECT_EQ(run(0), GraphCache::Way::replayed);
  run(keys);
  EXPECT_EQ(run(keys), GraphCache::Way::recorded);
  EXPECT_EQ(cache.graphs(), GraphCache::kGraphs);
  EXPECT_EQ(run(0), GraphCache::Way::replayed);
  EXPECT_EQ(run(1), GraphCache::Way::eager);  // the one that was not used for the longest time
}

TEST(EmulatorGraph, SettingAndTraceMakeAllEager) {
  const Step step;
  set(step.input, 1);
  const auto ways_of = [&](GraphCache& cache) {
    for (int i = 0; i < 3; ++i) cache.run<Tensor>("step", [&] { return step.run(); });
    return cache.last_way();
  };
  {
    const OneSetting off("SWITCHYARD_GRAPHS", "off");
    GraphCache cache(Device::cuda_emulated(), "step");
    EXPECT_EQ(ways_of(cache), GraphCache::Way::eager);
    EXPECT_EQ(cache.arena_bytes(), 0u);
  }
  {
    const OneSetting wrong("SWITCHYARD_GRAPHS", "1");
    try {
      GraphCache cache(Device::cuda_emulated(), "step");
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::usage);
      EXPECT_STREQ(error.what(), "[graph] SWITCHYARD_GRAPHS=1: expected on or off");
    }
  }
  GraphCache cache(Device::cuda_emulated(), "step");
  const std::atomic<std::int64_t> layer{-1};
  StreamLog log(layer);
  StreamLog* const before = StreamLog::exchange_of_thread(&log);
  EXPECT_EQ(ways_of(cache), GraphCache::Way::eager);
  StreamLog::exchange_of_thread(before);
  EXPECT_EQ(ways_of(cache), GraphCache::Way::replayed);
}

}  // namespace
}  // namespace switchyard::gpu
