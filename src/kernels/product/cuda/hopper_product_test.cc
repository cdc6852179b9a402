// The products that need Hopper on the emulator, at each pace and in each order of threads, against
// mma_product: for groups that end on all sides of the edges of tiles, into a C of poison with places between
// its rows and behind it that must stay as they are.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "emulator/async.h"
#include "kernels/product/cuda/group_table.h"
#include "kernels/product/cuda/product.h"
#include "kernels/product/cuda/split_product.h"

namespace switchyard::gpu::hopper_products {
namespace {

using emulator::Order;
using emulator::Pace;

class Timing {
 public:
  Timing(Order order, Pace pace, bool proxies) {
    emulator::set_order(order);
    emulator::set_pace(pace);
    emulator::set_proxies_checked(proxies);
  }
  ~Timing() {
    emulator::set_order(Order::forward);
    emulator::set_pace(Pace::late);
    emulator::set_proxies_checked(false);
  }
};

struct Case {
  std::string name;
  Groups groups;
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  std::vector<std::int32_t> sizes = {};
  std::int64_t batch = 1;  // without groups
  std::int64_t gap = 0;    // elements between rows of C
  bool bias = false, accumulate = false;
  int terms = 1;
  bool all_timings = false;  // takes time

  std::int64_t rows_of_groups() const { return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}); }
};

// Whole numbers whose sums are exact in any order.
std::vector<bfloat16> numbers(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<bfloat16> values(static_cast<std::size_t>(count));
  for (bfloat16& value : values) value = bfloat16(static_cast<float>(static_cast<int>(random() % 5) - 2));
  return values;
}

// A case's operands, and C.
template <typename C>
class Run {
 public:
  explicit Run(const Case& c) {
    const bool of_depth = c.groups == Groups::depth, of_rows = c.groups == Groups::rows;
    const std::int64_t batch = c.groups == Groups::none ? c.batch : std::ssize(c.sizes);
    const std::int64_t m = of_rows ? c.rows_of_groups() : c.m, k = of_depth ? c.rows_of_groups() : c.k;
    p.dtype = DType::bf16;
    p.c_dtype = dtype_of<C>::value;
    p.m = m;
    p.n = c.n;
    p.transpose_a = c.transpose_a;
    p.transpose_b = c.transpose_b;
    p.ldc = c.n + c.gap;
    p.groups = c.groups;
    p.batch = batch;
    p.a_stride = c.groups == Groups::none && batch > 1 ? m * k : 0;
    p.b_stride = !of_depth && batch > 1 ? k * c.n : 0;
    p.c_stride = !of_rows && batch > 1 ? m * p.ldc : 0;
    p.group_sizes = c.sizes.empty() ? nullptr : c.sizes.data();
    p.depth_rows = of_depth ? k : 0;
    p.accumulate = c.accumulate;
    p.term_count = c.terms;
    for (int t = 0; t < c.terms; ++t) {
      const auto seed = static_cast<unsigned>(t);
      // The depth of each term is 64 less than that of the one before.
      const std::int64_t depth = k - 64 * t;
      p.terms[t].a = operands_.emplace_back(numbers(m * k * (p.a_stride > 0 ? batch : 1), 10 + seed)).data();
      p.terms[t].b =
          operands_.emplace_back(numbers(k * c.n * (p.b_stride > 0 ? batch : 1), 20 + seed)).data();
      p.terms[t].k = of_depth ? 0 : depth;
      p.terms[t].lda = c.transpose_a ? m : depth;
      p.terms[t].ldb = c.transpose_b ? depth : c.n;
    }
    if (c.bias) {
      p.bias = operands_.emplace_back(numbers(c.n * batch, 30)).data();
      p.bias_stride = c.n;
    }
    constexpr std::int64_t kBehind = 64;  // rows
    const std::int64_t rows = m * (p.c_stride > 0 ? batch : 1) + kBehind;
    values_.assign(static_cast<std::size_t>(rows * p.ldc), C(c.accumulate ? 3.0f : std::nanf("")));
    p.c = values_.data();
  }
  std::vector<float> result() const { return {values_.begin(), values_.end()}; }
  std::vector<float> of(const std::function<void(const DeviceProduct&)>& product) {
    const std::vector<C> before = values_;
    product(p);
    const std::vector<float> found = result();
    values_ = before;
    return found;
  }
  DeviceProduct p;

 private:
  std::vector<std::vector<bfloat16>> operands_;
  std::vector<C> values_;
};

// Poison is equal to poison.
void expect_same(const std::vector<float>& found, const std::vector<float>& expected, std::int64_t columns) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isnan(found[i]) && std::isnan(expected[i])) continue;
    ASSERT_EQ(found[i], expected[i]) << "row " << static_cast<std::int64_t>(i) / columns << ", column "
                                     << static_cast<std::int64_t>(i) % columns;
  }
}

using RunProduct = std::function<void(const DeviceProduct&)>;

void by_copies(const DeviceProduct& p) {
  tma_product(alone(p));
}

// `turn`: of the timing of a case that does not have all of them.
template <typename C>
void expect_those_of_mma(const Case& c, const RunProduct& product, int turn) {
  SCOPED_TRACE(c.name + (sizeof(C) == 4 ? ", float32" : ", bfloat16"));
  Run<C> run(c);
  const std::vector<float> expected = run.of(mma_product);
  const auto poisoned = std::ranges::count_if(expected, [](float x) { return std::isnan(x); });
  EXPECT_LT(poisoned, std::ssize(expected));
  const auto expect_now = [&](Order order, Pace pace, bool proxies) {
    const Timing now(order, pace, proxies);
    expect_same(run.of(product), expected, run.p.ldc);
  };
  if (c.all_timings || turn % 3 == 0) expect_now(Order::forward, Pace::late, false);
  if (c.all_timings || turn % 3 == 1) expect_now(Order::reverse, Pace::early, false);
  if (c.all_timings || turn % 3 == 2) expect_now(Order::random, Pace::random, false);
  if (c.all_timings) expect_now(Order::random, Pace::late, true);
}

const std::vector<std::int32_t> kEdges{0, 1, 63, 64, 65, 127, 128, 130, 0, 257, 0};

std::vector<Case> cases() {
  std::vector<std::int32_t> most(kMostGroups, 0);
  most[0] = 65, most.back() = 3;
  return {
      {.name = "rows",
       .groups = Groups::rows,
       .m = 0,
       .n = 264,
       .k = 72,
       .sizes = kEdges,
       .all_timings = true},
      {.name = "rows, transposed",
       .groups = Groups::rows,
       .m = 0,
       .n = 136,
       .k = 200,
       .transpose_b = true,
       .sizes = kEdges,
       .gap = 8},
      {.name = "rows, bias", .groups = Groups::rows, .m = 0, .n = 72, .k = 64, .sizes = kEdges, .bias = true},
      {.name = "rows, added",
       .groups = Groups::rows,
       .m = 0,
       .n = 72,
       .k = 64,
       .sizes = kEdges,
       .accumulate = true},
      {.name = "rows, columns that are no chunks of C",
       .groups = Groups::rows,
       .m = 0,
       .n = 72,
       .k = 64,
       .sizes = kEdges,
       .gap = 3},
      {.name = "rows, two terms",
       .groups = Groups::rows,
       .m = 0,
       .n = 64,
       .k = 72,
       .transpose_b = true,
       .sizes = {65, 0, 1},
       .terms = 2},
      {.name = "rows, deep", .groups = Groups::rows, .m = 0, .n = 64, .k = 2048, .sizes = {65, 0, 1}},
      {.name = "as many groups as fit", .groups = Groups::rows, .m = 0, .n = 72, .k = 64, .sizes = most},
      {.name = "depth",
       .groups = Groups::depth,
       .m = 136,
       .n = 264,
       .k = 0,
       .transpose_a = true,
       .sizes = kEdges,
       .gap = 16},
      {.name = "batch", .groups = Groups::none, .m = 200, .n = 264, .k = 136, .batch = 3},
      {.name = "both transposed",
       .groups = Groups::none,
       .m = 328,
       .n = 520,
       .k = 64,
       .transpose_a = true,
       .transpose_b = true,
       .gap = 8},
  };
}

TEST(HopperProducts, OfTheCopyEngineAreThoseOfMma) {
  int turn = 0;
  for (const Case& c : cases()) {
    expect_those_of_mma<bfloat16>(c, by_copies, turn++);
    expect_those_of_mma<float>(c, by_copies, turn++);
  }
}

TEST(HopperProducts, OfTheCopyEngineRefuseMoreGroupsThanTheirTableHas) {
  const DeviceProduct p{.dtype = DType::bf16, .groups = Groups::rows, .batch = kMostGroups + 1};
  EXPECT_STREQ(tma_refuses(alone(p)), "it has more than 352 groups");
}

std::vector<Case> split_cases() {
  return {
      {.name = "more steps than stages",
       .groups = Groups::none,
       .m = 136,
       .n = 72,
       .k = 1800,
       .transpose_a = true,
       .all_timings = true},
      {.name = "batch, fewer steps than parts",
       .groups = Groups::none,
       .m = 72,
       .n = 136,
       .k = 136,
       .transpose_b = true,
       .batch = 2,
       .gap = 8},
      {.name = "four terms, added",
       .groups = Groups::none,
       .m = 130,
       .n = 264,
       .k = 264,
       .gap = 3,
       .bias = true,
       .accumulate = true,
       .terms = 4},
      {.name = "columns that are no fours, both transposed",
       .groups = Groups::none,
       .m = 56,
       .n = 133,
       .k = 328,
       .transpose_a = true,
       .transpose_b = true},
  };
}

TEST(HopperProducts, OfSplitDepthAreThoseOfMma) {
  int turn = 0;
  for (const int parts : {1, 2, 4}) {
    const auto product = [parts](const DeviceProduct& args) { split_product_in(parts, alone(args)); };
    SCOPED_TRACE(std::to_string(parts) + " parts");
    for (const Case& c : split_cases()) {
      expect_those_of_mma<bfloat16>(c, product, turn++);
      expect_those_of_mma<float>(c, product, turn++);
    }
  }
}

TEST(HopperProducts, DepthIsSplitBySizesAlone) {
  const auto parts_of = [](std::int64_t m, std::int64_t n) {
    return depth_parts_of(alone({.m = m, .n = n}));
  };
  EXPECT_EQ(parts_of(512, 512), 4);
  EXPECT_EQ(parts_of(512, 1024), 4);
  EXPECT_EQ(parts_of(512, 1152), 2);
  EXPECT_EQ(parts_of(1024, 1024), 2);
  EXPECT_EQ(parts_of(1024, 1152), 1);
  EXPECT_EQ(depth_parts_of(alone({.m = 512, .n = 512, .batch = 4})), 2);
}

TEST(HopperProducts, OfSplitDepthAreForFewTilesAndLongDepths) {
  const std::vector<bfloat16> operand(64);
  DeviceProduct p{.dtype = DType::bf16, .m = 512, .n = 512};
  p.terms[0] = {.a = operand.data(), .b = operand.data(), .k = 4096, .lda = 512, .ldb = 512};
  const auto refusal = [](const DeviceProduct& of) { return split_refuses(alone(of)); };
  EXPECT_EQ(refusal(p), nullptr);
  DeviceProduct other = p;
  other.terms[0].k = 960;
  EXPECT_STREQ(refusal(other), "its depth is less than 1024");
  other = p;
  other.m = 4096;
  EXPECT_STREQ(refusal(other), "it has more than a few tiles");
  other = p;
  other.groups = Groups::rows;
  EXPECT_STREQ(refusal(other), "it has groups");
  other = p;
  other.dtype = DType::f32;
  EXPECT_STREQ(refusal(other), "the operands are not bfloat16");
  other = p;
  other.terms[0].lda = 516;
  EXPECT_STREQ(refusal(other), "operands are not aligned to 16 bytes");
}

// ---- The table of groups finds what find_part() does

struct Found {
  bool any = false;
  Part part;
};

GPU_KERNEL find_by_table(DeviceProduct p, int rows, int columns, std::int32_t band, Found* found) {
  GPU_SHARED(std::int32_t, first_block, kMostGroups + 1);
  GPU_SHARED(std::int32_t, first_row, kMostGroups + 1);
  const GroupTable table{first_block, first_row};
  table.make(p, rows);
  barrier();
  const auto column_blocks = static_cast<std::int32_t>((p.n + columns - 1) / columns),
             products = static_cast<std::int32_t>(p.groups == Groups::rows ? 1 : p.batch),
             of_product = table.row_blocks(p, rows) * column_blocks;
  for (std::int32_t i = thread_index(); i < of_product * products; i += kWarp) {
    found[i].any = true;
    table.find(p, i % of_product, i / of_product, rows, columns, band, found[i].part);
  }
}

GPU_KERNEL find_by_walking(DeviceProduct p, int rows, int columns, std::int64_t band, std::int64_t row_blocks,
                           Found* found) {
  Part part;
  if (!find_part(p, block_index(), block_index_z(), rows, columns, row_blocks, part, band)) return;
  if (thread_index() == 0) found[block_index_z() * block_count() + block_index()] = {true, part};
}

auto key_of(const Part& part) {
  return std::tuple(part.group, part.row, part.column, part.rows_end, part.depth_begin, part.depth_end,
                    part.b_offset, part.c_offset, part.bias_offset, part.a_offset);
}

TEST(HopperProducts, TheTableFindsThePartsOfGroups) {
  for (const Groups groups : {Groups::rows, Groups::depth}) {
    for (const std::int32_t band : {8, 16}) {
      DeviceProduct p{.m = groups == Groups::rows ? std::accumulate(kEdges.begin(), kEdges.end(), 0) : 600,
                      .n = 256 * 19 + 1,
                      .groups = groups,
                      .batch = std::ssize(kEdges),
                      .b_stride = 7,
                      .c_stride = 11,
                      .bias_stride = 13,
                      .group_sizes = kEdges.data()};
      const Launch walked = product_launch(p, 256, 256, kWarp, 0);
      std::vector<Found> by_table(static_cast<std::size_t>(walked.blocks * walked.blocks_z)),
          by_walking(by_table.size());
      launch({.blocks = 1, .threads = kWarp}, find_by_table, p, 256, 256, band, by_table.data());
      launch(walked, find_by_walking, p, 256, 256, band, row_blocks_of(p, 256), by_walking.data());
      const auto sorted = [](const std::vector<Found>& all) {
        std::vector<decltype(key_of(Part()))> keys;
        for (const Found& found : all)
          if (found.any) keys.push_back(key_of(found.part));
        std::ranges::sort(keys);
        return keys;
      };
      EXPECT_FALSE(sorted(by_walking).empty());
      EXPECT_EQ(sorted(by_table), sorted(by_walking));
    }
  }
}

}  // namespace
}  // namespace switchyard::gpu::hopper_products
