// Hopper's copies and products on the emulator: right ones give the right sums whatever their order and pace,
// and each mistake that a kernel can make with them is found.
#include "emulator/async.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <vector>

#include "core/testing.h"
#include "emulator/testing.h"
#include "kernels/cuda/copy_engine.h"
#include "kernels/product/cuda/product.h"

namespace switchyard::gpu {
namespace {

using emulator::in_all_timings;
using emulator::Order;
using emulator::Pace;
using emulator::Timing;

std::vector<bfloat16> random_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<bfloat16> values(count);
  for (bfloat16& value : values) value = bfloat16(static_cast<float>(static_cast<int>(random() % 17) - 8));
  return values;
}

// ---- A pipeline of two stages, c [64, 128] = a [64, depth] · b [depth, 128], and its mistakes

enum class Mistake {
  none,
  no_wait_for_a_stage,
  stage_released_before_its_product,
  wrong_parity,
  wrong_bytes,
  no_swizzle,
  sums_read_in_flight,
  no_begin,
  barrier_overwritten,
  no_registers,
};

constexpr int kRows = 64, kColumns = 128, kDepth = 64, kStages = 2;

template <Mistake mistake>
GPU_KERNEL pipeline(TensorMap a_map, TensorMap b_map, float* c, int steps) {
  constexpr int kA = kRows * kDepth, kB = kDepth * kColumns;
  GPU_SHARED(std::uint64_t, full, kStages);
  GPU_SHARED(std::uint64_t, empty, kStages);
  auto* const tiles = dynamic_shared<bfloat16>();
  if (thread_index() == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(&full[stage], 1);
      init_barrier(&empty[stage], 1);
    }
    show_barriers();
    if (mistake == Mistake::barrier_overwritten) full[0] = ~std::uint64_t{0};
  }
  barrier();
  if (thread_index() < 128) {
    give_up_registers<24>();
    for (int step = 0; step < steps && thread_index() == 0; ++step) {
      const int stage = step % kStages;
      const auto phase = static_cast<std::uint32_t>(step / kStages % 2);
      wait_for_phase(&empty[stage], mistake == Mistake::wrong_parity ? phase : phase ^ 1u);
      bfloat16* const a = tiles + stage * (kA + kB);
      expect_bytes(&full[stage], (kA + kB) * sizeof(bfloat16) + (mistake == Mistake::wrong_bytes ? 64 : 0));
      copy_box(a, a_map, step * kDepth, 0, 0, &full[stage], 0);
      for (int i = 0; i < kColumns / 64; ++i)
        copy_box(a + kA + i * kDepth * 64, b_map, i * 64, step * kDepth, 0, &full[stage], 0);
    }
    return;
  }
  if (mistake != Mistake::no_registers) take_registers<240>();
  float sums[kColumns / 2];
  for (float& sum : sums) sum = 0;
  const auto release = [&](int stage) {
    if (thread_index() == 128) arrive_at(&empty[stage], 0);
  };
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages;
    if (mistake != Mistake::no_wait_for_a_stage)
      wait_for_phase(&full[stage], static_cast<std::uint32_t>(step / kStages % 2));
    const bfloat16* const a = tiles + stage * (kA + kB);
    if (mistake == Mistake::stage_released_before_its_product) release(stage);
    if (mistake != Mistake::no_begin) begin_multiplying();
    for (int depth = 0; depth < kDepth; depth += 16) {
      const std::uint64_t plain = std::uint64_t{3} << 62;
      multiply<kColumns, 0, 1>(sums, matrix_at(a + depth, 0) ^ (mistake == Mistake::no_swizzle ? plain : 0),
                               matrix_at(a + kA + depth * 64, kDepth * 128));
    }
    end_multiplying();
    if (mistake == Mistake::sums_read_in_flight) sums[0] += 1;
    wait_for_products<0>();
    if (mistake != Mistake::stage_released_before_its_product) {
      named_barrier(1, 128);  // all have waited for their product
      release(stage);
    }
  }
  const int warp = thread_index() % 128 / kWarp, lane = thread_index() % kWarp;
  for (int j = 0; j < kColumns / 2; ++j) {
    const int row = warp * 16 + lane / 4 + j / 2 % 2 * 8, column = j / 4 * 8 + lane % 4 * 2 + j % 2;
    c[row * kColumns + column] = sums[j];
  }
}

struct Pipeline {
  static constexpr int kSteps = 5;
  std::vector<bfloat16> a = random_values(kRows * kDepth * kSteps, 1),
                        b = random_values(kDepth * kSteps * kColumns, 2);
  std::vector<float> c = std::vector<float>(kRows * kColumns, -1.0f);

  std::vector<float> expected() const {
    std::vector<float> sums(c.size());
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t k = 0; k < kDepth * kSteps; ++k) {
        for (std::size_t column = 0; column < kColumns; ++column)
          sums[row * kColumns + column] +=
              static_cast<float>(a[row * kDepth * kSteps + k]) * static_cast<float>(b[k * kColumns + column]);
      }
    }
    return sums;
  }
  template <Mistake mistake>
  void run() {
    const TensorMap a_map =
        tensor_map(a.data(), kDepth * kSteps, kRows, kDepth * kSteps, 1, kRows * kDepth * kSteps, 64, kRows);
    const TensorMap b_map =
        tensor_map(b.data(), kColumns, kDepth * kSteps, kColumns, 1, kColumns * kDepth * kSteps, 64, kDepth);
    launch({.blocks = 1,
            .threads = 256,
            .shared_bytes = kStages * (kRows + kColumns) * kDepth * sizeof(bfloat16)},
           pipeline<mistake>, a_map, b_map, c.data(), kSteps);
  }
};

TEST(EmulatorAsync, APipelineIsRightAtEveryPace) {
  const std::vector<float> expected = Pipeline().expected();
  in_all_timings([&] {
    Pipeline pipeline;
    pipeline.run<Mistake::none>();
    EXPECT_EQ(pipeline.c, expected);
  });
}

// Ends the process where some timing shows the mistake: with the emulator's line, or with one for wrong sums.
template <Mistake mistake>
void find() {
  const std::vector<float> expected = Pipeline().expected();
  std::string found;
  in_all_timings([&] {
    Pipeline pipeline;
    try {
      pipeline.run<mistake>();
      if (pipeline.c == expected) return;
      found = "the sums are wrong";
    } catch (const Error& error) {
      found = error.what();
    }
    std::fputs(found.c_str(), stderr);
    std::abort();
  });
}

TEST(EmulatorAsyncDeathTest, FindsMistakes) {
  EXPECT_DEATH(find<Mistake::no_wait_for_a_stage>(),
               "more arrivals at a barrier than it expects|the sums are wrong");
  EXPECT_DEATH(find<Mistake::stage_released_before_its_product>(),
               "wait for what cannot come|the sums are wrong");
  EXPECT_DEATH(find<Mistake::wrong_parity>(), "wait for what cannot come: .* a phase of a barrier");
  EXPECT_DEATH(find<Mistake::wrong_bytes>(), "wait for what cannot come: .* 64 bytes missing");
  EXPECT_DEATH(find<Mistake::no_swizzle>(), "a matrix without the 128-byte swizzle");
  EXPECT_DEATH(find<Mistake::sums_read_in_flight>(),
               "sums were written while a product was on its way|the sums are wrong");
  EXPECT_DEATH(find<Mistake::no_begin>(), "a product without begin_multiplying");
  EXPECT_DEATH(find<Mistake::barrier_overwritten>(), "has no beginning, or was overwritten");
  EXPECT_DEATH(find<Mistake::no_registers>(), "128 of 256 threads say how many registers");
}

// ---- Registers: a block of 384 threads starts with 168 a thread, and has no more to share

template <int producer, int consumer>
GPU_KERNEL share_registers() {
  if (thread_index() < 128)
    give_up_registers<producer>();
  else
    take_registers<consumer>();
}

TEST(EmulatorAsync, SharesTheRegistersThatABlockHas) {
  launch({.blocks = 1, .threads = 384}, share_registers<56, 224>);
  launch({.blocks = 1, .threads = 512}, share_registers<56, 152>);
  EXPECT_DEATH(end_with_its_error([] { launch({.blocks = 1, .threads = 384}, share_registers<48, 232>); }),
               "a cluster's threads ask for 65536 registers, its blocks have 64512 each");
}

// ---- Fences: tensor cores see what threads wrote only after show_to_tensor_cores()

template <bool with_fence>
GPU_KERNEL multiply_written(const bfloat16* a, float* c) {
  auto* const tile = dynamic_shared<bfloat16>();
  for (int i = thread_index(); i < 64 * 64; i += 128) {
    const int row = i / 64, column = i % 64;
    tile[row * 64 + (column / 8 ^ row % 8) * 8 + column % 8] = a[i];
  }
  if (with_fence) show_to_tensor_cores();
  barrier();
  float sums[64];
  for (float& sum : sums) sum = 0;
  begin_multiplying();
  multiply<128, 0, 0>(sums, matrix_at(tile, 0), matrix_at(tile, 0));
  end_multiplying();
  wait_for_products<0>();
  c[thread_index()] = sums[0];
}

TEST(EmulatorAsync, FindsAMissingFence) {
  const std::vector<bfloat16> a = random_values(128 * 64, 3);
  std::vector<float> fenced(128), bare(128);
  const Timing now(Order::forward, Pace::late, true);
  const Launch how{.blocks = 1, .threads = 128, .shared_bytes = 128 * 64 * sizeof(bfloat16)};
  launch(how, multiply_written<true>, a.data(), fenced.data());
  launch(how, multiply_written<false>, a.data(), bare.data());
  EXPECT_FALSE(std::isnan(fenced[0]));
  EXPECT_TRUE(std::isnan(bare[0]));
}

// ---- Operands: each layout, and a from registers, against sums of whole numbers

template <int columns, int transpose_a, int transpose_b, bool from_registers>
GPU_KERNEL multiply_once(const bfloat16* a, const bfloat16* b, float* c) {
  auto* const a_tile = dynamic_shared<bfloat16>();
  bfloat16* const b_tile = a_tile + 64 * 64;
  const auto place = [](int outer, int k, int transposed) {
    const int row = transposed ? k : outer, column = transposed ? outer % 64 : k;
    return (transposed ? outer / 64 * 64 * 64 : 0) + row * 64 + (column / 8 ^ row % 8) * 8 + column % 8;
  };
  for (int i = thread_index(); i < 64 * 16; i += 128) a_tile[place(i / 16, i % 16, transpose_a)] = a[i];
  for (int i = thread_index(); i < columns * 16; i += 128) b_tile[place(i / 16, i % 16, transpose_b)] = b[i];
  show_to_tensor_cores();
  barrier();
  float sums[columns / 2];
  for (float& sum : sums) sum = 1;
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  begin_multiplying();
  if constexpr (from_registers) {
    std::uint32_t registers[4];
    for (int r = 0; r < 4; ++r) {
      const int row = warp * 16 + lane / 4 + r % 2 * 8, k = lane % 4 * 2 + r / 2 * 8;
      registers[r] = static_cast<std::uint32_t>(a[row * 16 + k].bits) |
                     static_cast<std::uint32_t>(a[row * 16 + k + 1].bits) << 16;
    }
    emulator::multiply({.columns = columns,
                        .transpose_a = false,
                        .transpose_b = transpose_b != 0,
                        .add = false,
                        .a_registers = registers,
                        .a = 0,
                        .b = matrix_at(b_tile, 64 * 128),
                        .sums = sums});
  } else {
    multiply<columns, transpose_a, transpose_b>(sums, matrix_at(a_tile, 64 * 128),
                                                matrix_at(b_tile, 64 * 128));
  }
  end_multiplying();
  wait_for_products<0>();
  for (int j = 0; j < columns / 2; ++j) {
    const int row = warp * 16 + lane / 4 + j / 2 % 2 * 8, column = j / 4 * 8 + lane % 4 * 2 + j % 2;
    c[row * columns + column] = sums[j] - (from_registers ? 0.0f : 1.0f);
  }
}

template <int columns, int transpose_a, int transpose_b, bool from_registers>
void expect_product() {
  SCOPED_TRACE(fmt::format("{} columns, {}{}, {}", columns, transpose_a, transpose_b, from_registers));
  const std::vector<bfloat16> a = random_values(64 * 16, 4), b = random_values(columns * 16, 5);
  std::vector<float> expected(64 * columns), found(64 * columns);
  for (std::size_t i = 0; i < 64; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      for (std::size_t k = 0; k < 16; ++k)
        expected[i * columns + j] += static_cast<float>(a[i * 16 + k]) * static_cast<float>(b[j * 16 + k]);
    }
  }
  in_all_timings([&] {
    launch({.blocks = 1, .threads = 128, .shared_bytes = (64 + columns) * 64 * sizeof(bfloat16)},
           multiply_once<columns, transpose_a, transpose_b, from_registers>, a.data(), b.data(),
           found.data());
    EXPECT_EQ(found, expected);
  });
}

TEST(EmulatorAsync, OperandsOfEachLayout) {
  expect_product<128, 0, 0, false>();
  expect_product<128, 0, 1, false>();
  expect_product<128, 1, 0, false>();
  expect_product<256, 1, 1, false>();
  expect_product<256, 0, 0, true>();
  expect_product<128, 0, 1, true>();
}

// ---- Stores by the copy engine

template <bool waits>
GPU_KERNEL store_rows(TensorMap map, bool overwrites) {
  auto* const tile = dynamic_shared<bfloat16>();
  for (int i = thread_index(); i < 16 * 64; i += kWarp) {
    const int row = i / 64, column = i % 64;
    tile[row * 64 + (column / 8 ^ row % 8) * 8 + column % 8] = bfloat16(static_cast<float>(row));
  }
  show_to_tensor_cores();
  barrier();
  if (thread_index() == 0) {
    emulator::store_box(map.map, tile, {0, 2, 0, 0, 0});
    emulator::end_stores();
    if (waits) emulator::wait_for_stores(0, true);
    if (overwrites) tile[0] = bfloat16(99.0f);
    if (!waits) emulator::wait_for_stores(0, true);
  }
}

TEST(EmulatorAsync, StoresAreClippedAndReadWhenTheyAreWaitedFor) {
  std::vector<bfloat16> out(12 * 40, bfloat16(-1.0f));
  const TensorMap map = tensor_map(out.data(), 40, 12, 40, 1, 12 * 40, 64, 16);
  const Launch how{.blocks = 1, .threads = kWarp, .shared_bytes = 16 * 64 * sizeof(bfloat16)};
  launch(how, store_rows<true>, map, true);
  for (std::size_t i = 0; i < out.size(); ++i)
    EXPECT_EQ(static_cast<float>(out[i]), i < 80 ? -1.0f : static_cast<float>(i / 40 - 2)) << i;
  launch(how, store_rows<false>, map, true);
  EXPECT_EQ(static_cast<float>(out[80]), 99.0f);
}

// ---- Clusters

GPU_KERNEL reach_into_the_other(int* out, bool meets_last) {
  GPU_SHARED(std::uint64_t, came, 1);
  const int rank = cluster_rank();
  if (thread_index() == 0) init_barrier(came, 1);
  cluster_barrier();
  if (rank == 1 && thread_index() == 0) arrive_at(came, 0);
  if (rank == 0) {
    wait_for_phase(came, 0);
    if (thread_index() == 0) out[0] = 1;
  }
  if (rank == 0 && thread_index() == 0 && !meets_last) arrive_at(came, 1);
  if (meets_last) cluster_barrier();
}

TEST(EmulatorAsync, BlocksOfAClusterReachEachOther) {
  in_all_timings([&] {
    int out = 0;
    launch({.blocks = 2, .threads = kWarp, .cluster = 2}, reach_into_the_other, &out, true);
    EXPECT_EQ(out, 1);
  });
}

TEST(EmulatorAsyncDeathTest, ABlockThatEndsBeforeItsCluster) {
  EXPECT_DEATH(end_with_its_error([&] {
                 int out = 0;
                 in_all_timings([&] {
                   launch({.blocks = 2, .threads = kWarp, .cluster = 2}, reach_into_the_other, &out, false);
                 });
               }),
               "has ended, block 0 reaches into it");
}

// ---- The products of the table that need Hopper, against the one that does not

struct Case {
  std::string name;
  Groups groups;
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
  std::vector<std::int32_t> sizes = {};
  int terms = 1;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      all.push_back({"plain", Groups::none, 200, 264, 136, a, b});
      all.push_back({"two terms", Groups::none, 72, 80, 64, a, b, {}, 2});
    }
  }
  all.push_back(
      {"groups of rows", Groups::rows, 1 + 130 + 63 + 257, 136, 72, false, false, {0, 1, 130, 63, 257}});
  all.push_back({"groups of rows, transposed", Groups::rows, 65, 264, 200, false, true, {64, 0, 1}});
  all.push_back({"groups of depth", Groups::depth, 136, 264, 0, true, false, {0, 1, 130, 63, 7}});
  return all;
}

// Calls body(product) with operands and a C of NaN.
template <typename Run>
std::vector<float> product_of(const Case& c, const Run& run) {
  const auto u = [](std::int64_t x) { return static_cast<std::size_t>(x); };
  std::int64_t depth_rows = 0;
  for (const std::int32_t size : c.sizes) depth_rows += size;
  const bool of_depth = c.groups == Groups::depth, of_rows = c.groups == Groups::rows;
  const std::int64_t k = of_depth ? depth_rows : c.k, batch = c.sizes.empty() ? 1 : std::ssize(c.sizes);
  std::vector<std::vector<bfloat16>> operands;
  DeviceProduct p;
  p.dtype = DType::bf16;
  p.c_dtype = DType::f32;
  p.m = c.m;
  p.n = c.n;
  p.transpose_a = c.transpose_a;
  p.transpose_b = c.transpose_b;
  p.ldc = c.n;
  p.groups = c.groups;
  p.batch = batch;
  p.b_stride = of_rows ? k * c.n : 0;
  p.c_stride = of_depth ? c.m * c.n : 0;
  p.group_sizes = c.sizes.empty() ? nullptr : c.sizes.data();
  p.depth_rows = of_depth ? depth_rows : 0;
  p.term_count = c.terms;
  for (int t = 0; t < c.terms; ++t) {
    const auto& a = operands.emplace_back(random_values(u(c.m * k), 10 + static_cast<unsigned>(t)));
    p.terms[t].a = a.data();
    const auto& b = operands.emplace_back(
        random_values(u(k * c.n * (of_rows ? batch : 1)), 20 + static_cast<unsigned>(t)));
    p.terms[t].b = b.data();
    p.terms[t].k = of_depth ? 0 : k;
    p.terms[t].lda = c.transpose_a ? c.m : k;
    p.terms[t].ldb = c.transpose_b ? k : c.n;
  }
  std::vector<float> out(u(c.m * c.n * (of_depth ? batch : 1)), std::nanf(""));
  p.c = out.data();
  run(p);
  return out;
}

void by_copies(const DeviceProduct& p) {
  tma_product(alone(p));
}

TEST(EmulatorAsync, HoppersProductsAreThoseOfMma) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const std::vector<float> expected = product_of(c, mma_product);
    for (const Pace pace : {Pace::late, Pace::early, Pace::random}) {
      for (const Order order : {Order::forward, Order::random}) {
        const Timing now(order, pace);
        EXPECT_EQ(product_of(c, wgmma_product), expected);
        EXPECT_EQ(product_of(c, by_copies), expected);
      }
    }
    const Timing now(Order::reverse, Pace::late, true);
    EXPECT_EQ(product_of(c, by_copies), expected);
    EXPECT_EQ(product_of(c, wgmma_product), expected);
  }
}

}  // namespace
}  // namespace switchyard::gpu
