// Products of few rows on Hopper's tensor cores, at each pace and in each order of threads of the emulator,
// against mma_product: into a C of poison with places between its rows and behind it that must stay as they
// are, from operands whose rows end in poison.
#include "kernels/product/cuda/few_rows_wgmma.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "emulator/testing.h"
#include "kernels/product/cuda/product.h"

namespace switchyard::gpu::few_rows_on_tensor_cores {
namespace {

using Sizes = std::vector<std::int32_t>;

struct Case {
  Sizes sizes = {};  // of groups; none: `batch` products of m rows
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  bool transpose_b = false, lookup = false, bias = false, accumulate = false;
  bool whole_numbers = true;  // sums are exact in any order

  bool grouped() const { return !sizes.empty(); }
  std::int64_t rows() const {
    return grouped() ? std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) : m;
  }
  std::int64_t matrices() const { return grouped() ? std::ssize(sizes) : batch; }
  std::string text() const {
    return fmt::format("{} rows in {} groups or products, n {}, k {}, B {}", rows(), matrices(), n, k,
                       transpose_b ? "transposed" : "as it is");
  }
};

std::int64_t in_chunks(std::int64_t x) {
  return (x + 7) / 8 * 8;
}

// Rows of `width` numbers, each from a multiple of 16 bytes on, and poison up to it.
std::vector<bfloat16> numbers(std::int64_t rows, std::int64_t width, const Case& c, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<bfloat16> values(static_cast<std::size_t>(rows * in_chunks(width)), bfloat16(std::nanf("")));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < width; ++i)
      values[static_cast<std::size_t>(row * in_chunks(width) + i)] =
          bfloat16(c.whole_numbers ? static_cast<float>(static_cast<int>(random() % 5) - 2) : normal(random));
  }
  return values;
}

// A case's operands, and C.
template <typename C>
class Operands {
 public:
  explicit Operands(const Case& c) {
    const std::int64_t rows = c.rows(), matrices = c.matrices();
    const std::int64_t stored = c.transpose_b ? c.n : c.k, width = c.transpose_b ? c.k : c.n;
    const std::int64_t all_rows = c.grouped() ? rows : rows * matrices;
    a_ = numbers(all_rows, c.k, c, 1);
    b_ = numbers(matrices * stored, width, c, 2);
    bias_ = numbers(1, matrices * c.n, c, 3);
    index_.resize(static_cast<std::size_t>(rows));
    std::iota(index_.rbegin(), index_.rend(), 0);
    sizes_ = c.sizes;
    p.dtype = DType::bf16;
    p.c_dtype = dtype_of<C>::value;
    p.m = rows;
    p.n = c.n;
    p.terms[0] = {.a = a_.data(),
                  .a_rows = c.lookup ? index_.data() : nullptr,
                  .b = b_.data(),
                  .k = c.k,
                  .lda = in_chunks(c.k),
                  .ldb = in_chunks(width)};
    p.transpose_b = c.transpose_b;
    p.ldc = c.n + 3;
    p.accumulate = c.accumulate;
    p.groups = c.grouped() ? Groups::rows : Groups::none;
    p.batch = matrices;
    p.b_stride = matrices > 1 ? stored * p.terms[0].ldb : 0;
    p.a_stride = c.grouped() || matrices == 1 ? 0 : rows * p.terms[0].lda;
    p.c_stride = c.grouped() || matrices == 1 ? 0 : rows * p.ldc;
    p.bias = c.bias ? bias_.data() : nullptr;
    p.bias_stride = c.n;
    p.group_sizes = c.grouped() ? sizes_.data() : nullptr;
    constexpr std::int64_t kBehind = 64;  // rows
    values_.assign(static_cast<std::size_t>((all_rows + kBehind) * p.ldc),
                   C(c.accumulate ? 3.0f : std::nanf("")));
    p.c = values_.data();
  }
  std::vector<float> of(const std::function<void(const DeviceProduct&)>& product) {
    const std::vector<C> before = values_;
    product(p);
    const std::vector<float> found(values_.begin(), values_.end());
    values_ = before;
    return found;
  }
  DeviceProduct p;

 private:
  std::vector<bfloat16> a_, b_, bias_;
  Sizes index_, sizes_;
  std::vector<C> values_;
};

std::uint32_t bits(float x) {
  return std::isnan(x) ? ~0u : std::bit_cast<std::uint32_t>(x);
}

// Poison is equal to poison.
void expect_same(const std::vector<float>& found, const std::vector<float>& expected, std::int64_t columns) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(bits(found[i]), bits(expected[i]))
        << found[i] << " for " << expected[i] << ", row " << static_cast<std::int64_t>(i) / columns
        << ", column " << static_cast<std::int64_t>(i) % columns;
  }
}

void in_one_list(const DeviceProduct& p) {
  few_rows_wgmma(alone(p));
}

std::function<void(const DeviceProduct&)> in_parts(int parts) {
  return [parts](const DeviceProduct& args) { few_rows_wgmma_in(parts, alone(args)); };
}

template <typename C>
void expect_those_of_mma(const Case& c, int parts, bool all_timings) {
  SCOPED_TRACE(fmt::format("{}, {} parts", c.text(), parts));
  Operands<C> run(c);
  const std::vector<float> expected = run.of(mma_product);
  const auto computed = std::ranges::count_if(expected, [](float x) { return !std::isnan(x); });
  EXPECT_GE(computed, c.rows() * c.n);
  const auto compare = [&] { expect_same(run.of(in_parts(parts)), expected, run.p.ldc); };
  if (all_timings) emulator::in_all_timings(compare);
  const emulator::Timing proxies(emulator::Order::random, emulator::Pace::random, true);
  compare();
}

TEST(FewRowsOnTensorCores, GroupsOfAllSizes) {
  const Sizes sizes{0, 1, 3, 7, 8, 9, 0, 17, 33, 64, 65, 130, 0};
  const Case plain{.sizes = sizes, .n = 77, .k = 200};
  ASSERT_EQ(few_rows_wgmma_refuses(alone(Operands<float>(plain).p)), nullptr);
  expect_those_of_mma<bfloat16>(plain, 1, true);
  expect_those_of_mma<float>({.sizes = sizes,
                              .n = 77,
                              .k = 200,
                              .transpose_b = true,
                              .lookup = true,
                              .bias = true,
                              .accumulate = true},
                             2, true);
  expect_those_of_mma<float>({.sizes = sizes, .n = 64, .k = 9, .lookup = true}, 1, false);
}

TEST(FewRowsOnTensorCores, ManyGroupsOfWhichFewHaveRows) {
  Sizes sizes(600, 0);
  sizes[3] = 2, sizes[8] = 1, sizes[255] = 5, sizes[256] = 66, sizes[512] = 9, sizes[599] = 4;
  expect_those_of_mma<bfloat16>({.sizes = sizes, .n = 16, .k = 72, .bias = true}, 1, false);
  expect_those_of_mma<bfloat16>({.sizes = Sizes(300, 0), .n = 16, .k = 72}, 1, false);
}

TEST(FewRowsOnTensorCores, EachNumberOfRows) {
  for (const std::int64_t m : {1, 3, 4, 7, 8, 9, 16, 17, 32, 33, 63, 64}) {
    for (const bool transpose_b : {false, true})
      expect_those_of_mma<bfloat16>(
          {.m = m, .n = 70, .k = 1100, .transpose_b = transpose_b, .bias = transpose_b}, 2, m % 8 == 1);
  }
}

TEST(FewRowsOnTensorCores, BatchesInEachNumberOfParts) {
  for (const int parts : {1, 2, 4, 8}) {
    const bool transpose_b = parts % 4 == 0;
    expect_those_of_mma<float>(
        {.m = 12, .n = 130, .k = 690, .batch = 3, .transpose_b = transpose_b, .accumulate = true}, parts,
        true);
    expect_those_of_mma<bfloat16>({.m = 5, .n = 200, .k = 130, .transpose_b = !transpose_b}, parts, false);
  }
}

// To the bit, whatever rows are beside: also where they fill more columns of a product.
TEST(FewRowsOnTensorCores, ARowDoesNotDependOnThoseBesideIt) {
  Case c{.m = 64, .n = 72, .k = 1000, .whole_numbers = false};
  Operands<float> all(c);
  const std::vector<float> expected = all.of(in_one_list);
  EXPECT_GT(few_rows_parts_of(alone(all.p)), 1);
  std::int64_t compared = 0;
  for (const std::int64_t m : {4, 8, 9, 16, 20, 33, 63}) {
    c.m = m;
    Operands<float> some(c);
    const std::vector<float> found = some.of(in_one_list);
    for (std::int64_t row = 0; row < m; ++row) {
      for (std::int64_t i = 0; i < c.n; ++i, ++compared) {
        const auto at = static_cast<std::size_t>(row * all.p.ldc + i);
        ASSERT_EQ(bits(found[at]), bits(expected[at])) << m << " rows: " << row << ", " << i;
      }
    }
  }
  EXPECT_GT(compared, 0);
}

TEST(FewRowsOnTensorCores, PartsFollowFromTheWeights) {
  const auto parts_of = [](std::int64_t n, std::int64_t k, std::int64_t groups) {
    DeviceProduct p{.m = 32, .n = n, .terms = {{.k = k}}, .batch = groups};
    if (groups > 1) p.groups = Groups::rows;
    const int parts = few_rows_parts_of(alone(p));
    p.m = 64;
    EXPECT_EQ(few_rows_parts_of(alone(p)), parts);
    return parts;
  };
  EXPECT_EQ(parts_of(512, 2048, 1), 8);
  EXPECT_EQ(parts_of(4096, 2048, 1), 4);
  EXPECT_EQ(parts_of(512, 512, 1), 2);
  EXPECT_EQ(parts_of(64, 64, 1), 1);
  EXPECT_EQ(parts_of(151936, 2048, 1), 1);
  EXPECT_EQ(parts_of(768, 2048, 128), 1);
}

TEST(FewRowsOnTensorCores, RefusesWhatItDoesNotCompute) {
  const Operands<bfloat16> run(Case{.m = 16, .n = 72, .k = 136});
  const auto reason = [&](const auto& change) {
    DeviceProduct other = run.p;
    change(other);
    const char* const why = few_rows_wgmma_refuses({&other, 1});
    return std::string(why == nullptr ? "" : why);
  };
  const auto in_groups = [](DeviceProduct& p, std::int64_t rows, std::int64_t groups) {
    p.groups = Groups::rows, p.m = rows, p.batch = groups;
  };
  EXPECT_EQ(reason([](DeviceProduct&) {}), "");
  EXPECT_EQ(reason([](DeviceProduct& p) { p.transpose_b = true; }), "");
  EXPECT_EQ(reason([](DeviceProduct& p) { p.dtype = DType::f32; }), "the operands are not bfloat16");
  EXPECT_EQ(reason([](DeviceProduct& p) { p.groups = Groups::depth; }), "the depth is in groups");
  EXPECT_EQ(reason([](DeviceProduct& p) { p.transpose_a = true; }), "A is transposed");
  EXPECT_EQ(reason([](DeviceProduct& p) { p.term_count = 2; }), "a second term is added");
  EXPECT_EQ(reason([](DeviceProduct& p) { p.terms[0].k = 0; }), "it has no depth");
  EXPECT_EQ(reason([](DeviceProduct& p) { p.terms[0].lda += 2; }), "operands are not aligned to 16 bytes");
  EXPECT_EQ(reason([](DeviceProduct& p) { p.terms[0].ldb += 4; }), "operands are not aligned to 16 bytes");
  EXPECT_EQ(reason([](DeviceProduct& p) { p.m = 3; }), "it has fewer than 4 rows");
  EXPECT_EQ(reason([](DeviceProduct& p) { p.m = 65; }), "it has more than 64 rows");
  EXPECT_EQ(reason([&](DeviceProduct& p) { in_groups(p, 32, 128); }), "most groups have one row at most");
  EXPECT_EQ(reason([&](DeviceProduct& p) { in_groups(p, 33, 128); }), "");
  EXPECT_EQ(reason([&](DeviceProduct& p) { in_groups(p, 256, 8); }), "");
  EXPECT_EQ(reason([&](DeviceProduct& p) { in_groups(p, 257, 8); }),
            "its groups have more than 32 rows on average");
  EXPECT_EQ(reason([](DeviceProduct& p) { p.weight_dtype = DType::packed_int4; }), "the weights are packed");
}

}  // namespace
}  // namespace switchyard::gpu::few_rows_on_tensor_cores
