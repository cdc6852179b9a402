// The emulator of a GPU's threads finds what it is there to find, and its fragments are
// those that the hardware has.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"
#include "core/testing.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/tiles.h"

namespace switchyard::gpu {
namespace {

using emulator::Order;

class InOrder {
 public:
  explicit InOrder(Order order) { emulator::set_order(order); }
  ~InOrder() { emulator::set_order(Order::forward); }
};

// What `body` gives in each of the three orders of threads.
template <typename Body>
auto in_all_orders(const Body& body) {
  std::vector<decltype(body())> results;
  for (const Order order : {Order::forward, Order::reverse, Order::random}) {
    const InOrder now(order);
    results.push_back(body());
  }
  return results;
}

// Each thread reads what its neighbour wrote.
template <bool with_barrier>
GPU_KERNEL rotate_in_shared(const int* in, int* out) {
  GPU_SHARED(int, values, 64);
  values[thread_index()] = in[thread_index()];
  if (with_barrier) barrier();
  out[thread_index()] = values[(thread_index() + 1) % 64];
}

template <bool with_barrier>
std::vector<int> rotated() {
  std::vector<int> in(64), out(64);
  std::iota(in.begin(), in.end(), 0);
  launch({.blocks = 1, .threads = 64}, rotate_in_shared<with_barrier>, in.data(), out.data());
  return out;
}

TEST(Emulator, FindsAMissingBarrier) {
  std::vector<int> expected(64);
  std::iota(expected.begin(), expected.end(), 1);
  expected[63] = 0;
  for (const auto& found : in_all_orders(rotated<true>)) EXPECT_EQ(found, expected);
  const auto wrong = in_all_orders(rotated<false>);
  for (const auto& found : wrong) EXPECT_NE(found, expected);
  EXPECT_NE(wrong[0], wrong[1]);
}

// The sum of a warp's values, by shuffles or through memory that no barrier guards.
template <bool with_shuffle>
GPU_KERNEL sum_in_warp(const float* in, float* out, float* between) {
  float sum = in[thread_index()];
  for (int by = kWarp / 2; by > 0; by /= 2) {
    between[thread_index()] = sum;
    sum += with_shuffle ? shuffle_xor(sum, by) : between[thread_index() ^ by];
  }
  out[thread_index()] = sum;
}

template <bool with_shuffle>
std::vector<float> summed() {
  std::vector<float> in(kWarp), out(kWarp), between(kWarp, -1.0f);
  std::iota(in.begin(), in.end(), 1.0f);
  launch({.blocks = 1, .threads = kWarp}, sum_in_warp<with_shuffle>, in.data(), out.data(), between.data());
  return out;
}

TEST(Emulator, FindsAPlainLoadInPlaceOfAShuffle) {
  const std::vector<float> expected(kWarp, 528.0f);
  for (const auto& found : in_all_orders(summed<true>)) EXPECT_EQ(found, expected);
  for (const auto& found : in_all_orders(summed<false>)) EXPECT_NE(found, expected);
}

GPU_KERNEL read_before_writing(float* out) {
  GPU_SHARED(float, values, kWarp);
  out[thread_index()] = values[thread_index()];
}

TEST(Emulator, SharedMemoryBeginsAsNoNumber) {
  std::vector<float> out(kWarp);
  launch({.blocks = 1, .threads = kWarp}, read_before_writing, out.data());
  EXPECT_TRUE(std::ranges::all_of(out, [](float x) { return std::isnan(x); }));
}

GPU_KERNEL copy_with_group(const float* in, float* out, bool waits) {
  GPU_SHARED(float, values, 4);
  if (thread_index() == 0) copy_async(values, in, 12);
  end_copies();
  if (waits) wait_for_copies<0>();
  for (int i = 0; i < 4 && thread_index() == 0; ++i) out[i] = values[i];
  wait_for_copies<0>();
}

TEST(Emulator, CopiesHaveMovedNothingBeforeTheyAreWaitedFor) {
  const std::vector<float> in{1, 2, 3, 4};
  std::vector<float> out(4);
  launch({.blocks = 1, .threads = kWarp}, copy_with_group, in.data(), out.data(), true);
  EXPECT_EQ(out, (std::vector<float>{1, 2, 3, 0}));
  launch({.blocks = 1, .threads = kWarp}, copy_with_group, in.data(), out.data(), false);
  EXPECT_TRUE(std::isnan(out[0]));
}

GPU_KERNEL wait_in_two_places(int* out) {
  if (thread_index() < kWarp)
    barrier();
  else
    out[0] = bits_set(ballot(thread_index() == kWarp));
  if (thread_index() == kWarp) return;
  barrier();
}

TEST(EmulatorDeathTest, ThreadsThatWaitForWhatCannotCome) {
  int out = 0;
  EXPECT_DEATH(
      end_with_its_error([&] { launch({.blocks = 1, .threads = 2 * kWarp}, wait_in_two_places, &out); }),
      "wait for what cannot come");
}

struct Place {
  std::int64_t size;
  const int* from;
};
GPU_KERNEL read_from(Place place, int* out) {
  if (thread_index() < place.size) out[thread_index()] = place.from[thread_index()];
}

TEST(Emulator, RefusesAKernelThatIsHandedHostMemory) {
  Device::cuda_emulated();  // from here on blocks of the host are known
  const Tensor here(DType::i32, {kWarp}),
      out = Memory(Device::cuda_emulated(), nullptr).empty(DType::i32, {kWarp});
  std::fill_n(here.data<std::int32_t>(), kWarp, 7);
  const Tensor there = to_device(Memory(Device::cuda_emulated(), nullptr), here);
  const auto read = [&](const std::int32_t* from) {
    launch({.blocks = 1, .threads = kWarp}, read_from, Place{kWarp, from},
           out.view().device_data<std::int32_t>());
  };
  read(there.view().device_data<std::int32_t>());
  EXPECT_EQ(to_host(out).data<std::int32_t>()[kWarp - 1], 7);
  expect_broken_check([&] { read(here.data<std::int32_t>()); },
                      "argument 1 of a kernel, at byte 8, has the address of a tensor");
}

TEST(Emulator, BlocksAreWholeWarps) {
  int out = 0;
  expect_broken_check([&] { launch({.blocks = 1, .threads = 20}, wait_in_two_places, &out); },
                      "blocks of 20 threads");
}

// Layouts as CuTe has them (mma_traits_sm80: SM80_16x8x16_F32BF16BF16F32_TN): where in a column-major matrix
// value v of thread t stands. Shape ((4,8),(2,2,2)), strides ((32,1),(16,8,128)) for a; ((4,8),(2,2)) and
// ((16,1),(8,64)) for b;
// ((4,8),(2,2)) and ((32,1),(16,8)) for c.
int place_in_a(int t, int v) {
  return t % 4 * 32 + t / 4 + v % 2 * 16 + v / 2 % 2 * 8 + v / 4 * 128;  // m + 16 k
}
int place_in_b(int t, int v) {
  return t % 4 * 16 + t / 4 + v % 2 * 8 + v / 2 * 64;  // n + 8 k
}
int place_in_c(int t, int v) {
  return t % 4 * 32 + t / 4 + v % 2 * 16 + v / 2 * 8;  // m + 16 n
}

GPU_KERNEL multiply_fragments(const bfloat16* a, const bfloat16* b, float* c) {
  const int t = thread_index();
  const auto pair = [](bfloat16 low, bfloat16 high) {
    return static_cast<std::uint32_t>(low.bits) | static_cast<std::uint32_t>(high.bits) << 16;
  };
  std::uint32_t x[4], y[2];
  for (int r = 0; r < 4; ++r) x[r] = pair(a[place_in_a(t, 2 * r)], a[place_in_a(t, 2 * r + 1)]);
  for (int r = 0; r < 2; ++r) y[r] = pair(b[place_in_b(t, 2 * r)], b[place_in_b(t, 2 * r + 1)]);
  float sums[4];
  for (int v = 0; v < 4; ++v) sums[v] = c[place_in_c(t, v)];
  multiply_tiles(sums, x, y[0], y[1]);
  for (int v = 0; v < 4; ++v) c[place_in_c(t, v)] = sums[v];
}

TEST(Emulator, FragmentsStandAsCuteHasThem) {
  std::vector<bfloat16> a(16 * 16), b(8 * 16);
  std::vector<float> c(16 * 8), expected(16 * 8);
  for (int i = 0; i < 256; ++i)
    a[static_cast<std::size_t>(i)] = bfloat16(static_cast<float>(i * 7 % 31 - 15));
  for (int i = 0; i < 128; ++i)
    b[static_cast<std::size_t>(i)] = bfloat16(static_cast<float>(i * 5 % 23 - 11));
  for (int i = 0; i < 128; ++i)
    c[static_cast<std::size_t>(i)] = expected[static_cast<std::size_t>(i)] = static_cast<float>(i);
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 8; ++n) {
      for (int k = 0; k < 16; ++k)
        expected[static_cast<std::size_t>(m + 16 * n)] +=
            static_cast<float>(a[static_cast<std::size_t>(m + 16 * k)]) *
            static_cast<float>(b[static_cast<std::size_t>(n + 8 * k)]);
    }
  }
  launch({.blocks = 1, .threads = kWarp}, multiply_fragments, a.data(), b.data(), c.data());
  EXPECT_EQ(c, expected);
}

// Four tiles side by side, [8, 32] in shared memory.
GPU_KERNEL load_four(const bfloat16* in, std::uint32_t* plain, std::uint32_t* transposed) {
  GPU_SHARED(bfloat16, tile, 8 * 32);
  for (int i = thread_index(); i < 8 * 32; i += kWarp) tile[i] = in[i];
  barrier();
  const int lane = thread_index();
  std::uint32_t found[4];
  load_tiles(tile + lane % 8 * 32 + lane / 8 * 8, found);
  for (int i = 0; i < 4; ++i) plain[lane * 4 + i] = found[i];
  load_tiles_transposed(tile + lane % 8 * 32 + lane / 8 * 8, found);
  for (int i = 0; i < 4; ++i) transposed[lane * 4 + i] = found[i];
}

TEST(Emulator, TilesAreLoadedRowByRowOrTransposed) {
  std::vector<bfloat16> in(8 * 32);
  for (std::size_t i = 0; i < in.size(); ++i) in[i].bits = static_cast<std::uint16_t>(i);
  std::vector<std::uint32_t> plain(128), transposed(128);
  launch({.blocks = 1, .threads = kWarp}, load_four, in.data(), plain.data(), transposed.data());
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    for (std::uint32_t tile = 0; tile < 4; ++tile) {
      const auto at = [&](std::uint32_t row, std::uint32_t column) { return row * 32 + tile * 8 + column; };
      const std::uint32_t row = lane / 4, column = lane % 4 * 2;
      EXPECT_EQ(plain[lane * 4 + tile], at(row, column) | at(row, column + 1) << 16);
      EXPECT_EQ(transposed[lane * 4 + tile], at(column, row) | at(column + 1, row) << 16);
    }
  }
}

}  // namespace
}  // namespace switchyard::gpu
