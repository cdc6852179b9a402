// Products of few rows with packed weights on tensor cores: every format, against the weights' values in
// double, and the bits of a row alone and among others.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "core/half.h"
#include "core/tensor.h"
#include "emulator/testing.h"
#include "kernels/packed/packed_block.h"
#include "kernels/product/cuda/product.h"

namespace switchyard::gpu {
namespace {

// Blocks of random numbers, fp8's of all bits but those that are no number; scales and offsets are those of
// weights, or `exact`: powers of two and small integers.
Tensor packed_weights(DType packed, const Shape& shape, bool exact, std::uint32_t seed) {
  std::mt19937 random(seed);
  const Tensor blocks(packed, shape);
  const PackedFormat& format = packed_format(packed);
  const auto draw = [&] { return static_cast<float>(random() % 4096) / 4096.0f - 0.5f; };
  for (std::int64_t b = 0; b < blocks.size(); ++b) {
    std::byte* const block = blocks.raw() + static_cast<std::size_t>(b) * size_of(packed);
    for (std::int64_t output = 0; output < kBlockOutputs; ++output) {
      PackedGroup group;
      const float scale = exact ? std::ldexp(1.0f, static_cast<int>(random() % 3) - 1) : draw();
      group.scale = packed == DType::packed_mxfp4 ? static_cast<std::uint32_t>(120 + random() % 3)
                    : packed == DType::packed_fp8 ? std::bit_cast<std::uint32_t>(scale)
                                                  : float_to_half(scale);
      if (has_offset(packed))
        group.offset = float_to_half(exact ? static_cast<float>(random() % 5) - 2.0f : 8 * draw());
      for (std::int64_t g = 0; g < groups_of(packed); ++g) {
        for (auto& number : group.numbers) {
          const auto any = static_cast<int>(random() % 256);
          number = static_cast<std::int8_t>(packed != DType::packed_fp8
                                                ? format.least_number + any % format.numbers
                                                : (any % 128 == 127 ? any - 1 : any));
        }
        for (auto& factor : group.scale_factors)
          factor = static_cast<std::int16_t>(static_cast<int>(random() % 60) -
                                             (packed == DType::packed_q6_k ? 30 : 0));
        if (scales_of(packed) == 1) group.scale_factors[1] = group.scale_factors[0];
        if (is_k_quant(packed) && has_offset(packed))
          group.offset_factor = static_cast<std::uint8_t>(random() % 60);
        write_group(packed, group, block, output, g);
      }
    }
  }
  return blocks;
}

// A tensor's bytes where kernels reach them.
class OnGpu {
 public:
  explicit OnGpu(const Tensor& x) : bytes_(x.defined() ? x.bytes() : 0) {
    if (x.defined()) std::memcpy(bytes_.data(), x.raw(), x.bytes());
  }
  void* data() { return bytes_.empty() ? nullptr : bytes_.data(); }
  void read(const Tensor& to) const {
    ASSERT_EQ(to.bytes(), bytes_.size());
    std::memcpy(to.raw(), bytes_.data(), bytes_.size());
  }

 private:
  std::vector<std::byte> bytes_;
};

// The group of inputs that has input k of output n of matrix `of`.
PackedGroup group_at(const Tensor& weights, std::int64_t of, std::int64_t k, std::int64_t n) {
  const DType packed = weights.dtype();
  const std::int64_t block =
      (of * weights.dim(1) + k / block_inputs(packed)) * weights.dim(2) + n / kBlockOutputs;
  return read_group(packed, weights.raw() + static_cast<std::size_t>(block) * size_of(packed),
                    n % kBlockOutputs, k / kGroupInputs % groups_of(packed));
}

Tensor random_rows(const Shape& shape, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const Tensor rows(DType::bf16, shape);
  for (std::int64_t i = 0; i < rows.size(); ++i) rows.data<bfloat16>()[i] = bfloat16(normal(random));
  return rows;
}

// A product of groups of rows. Its C has rows and columns beyond those of the product.
struct Grouped {
  static constexpr std::int64_t kMore = 3;
  Tensor a, weights;
  std::vector<std::int32_t> sizes, lookup = {};
  DType c_dtype = DType::f32;
  Tensor bias = {};  // [groups, n]
  bool accumulate = false;

  std::int64_t rows() const { return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}); }
  std::int64_t columns() const { return weights.dim(2) * kBlockOutputs; }
  std::int64_t depth() const { return weights.dim(1) * block_inputs(weights.dtype()); }
  std::int64_t pitch() const { return columns() + kMore; }

  // Returns C, [rows + 3, pitch], all of whose elements were `before`.
  std::vector<float> run(float before = 7) const {
    const std::int64_t size = (rows() + kMore) * pitch();
    const Tensor c(c_dtype, {size});
    const bool wide = c_dtype == DType::f32;
    for (std::int64_t i = 0; i < size; ++i) {
      if (wide)
        c.data<float>()[i] = before;
      else
        c.data<bfloat16>()[i] = bfloat16(before);
    }
    OnGpu rows_there(a), weights_there(weights), bias_there(bias), c_there(c);
    const DeviceProduct p{.dtype = DType::bf16,
                          .c_dtype = c_dtype,
                          .weight_dtype = weights.dtype(),
                          .m = rows(),
                          .n = columns(),
                          .terms = {{.a = rows_there.data(),
                                     .a_rows = lookup.empty() ? nullptr : lookup.data(),
                                     .b = weights_there.data(),
                                     .k = depth(),
                                     .lda = depth(),
                                     .ldb = weights.dim(2)}},
                          .ldc = pitch(),
                          .c = c_there.data(),
                          .bias = bias_there.data(),
                          .accumulate = accumulate,
                          .groups = Groups::rows,
                          .batch = std::ssize(sizes),
                          .b_stride = weights.dim(1) * weights.dim(2),
                          .bias_stride = columns(),
                          .group_sizes = sizes.data()};
    EXPECT_EQ(few_rows_packed_refuses(alone(p)), nullptr);
    few_rows_packed_product(alone(p));
    c_there.read(c);
    std::vector<float> result;
    for (std::int64_t i = 0; i < size; ++i)
      result.push_back(wide ? c.data<float>()[i] : static_cast<float>(c.data<bfloat16>()[i]));
    return result;
  }
};

std::vector<float> values_of_column(const Tensor& weights, std::int64_t of, std::int64_t depth,
                                    std::int64_t n) {
  std::vector<float> values;
  for (std::int64_t k = 0; k < depth; k += kGroupInputs) {
    const auto group = values_of(weights.dtype(), group_at(weights, of, k, n));
    values.insert(values.end(), group.begin(), group.end());
  }
  return values;
}

// Returns the size of each of a column's terms, which bounds how far rounding moves it: product and offset.
std::vector<double> sizes_of_column(const Tensor& weights, std::int64_t of, const std::vector<float>& values,
                                    std::int64_t n) {
  std::vector<double> sizes;
  for (std::size_t k = 0; k < values.size(); ++k) {
    const PackedGroup group = group_at(weights, of, static_cast<std::int64_t>(k), n);
    double offset = 0;
    if (has_offset(weights.dtype()))
      offset = std::abs(half_to_float(group.offset)) *
               (is_k_quant(weights.dtype()) ? static_cast<double>(group.offset_factor) : 1.0);
    sizes.push_back(std::abs(static_cast<double>(values[k])) + 2 * offset);
  }
  return sizes;
}

// Holds a product to the sums of double. A term is rounded 32 times in the sums of its group, once with its
// scale, which was rounded twice, then with each of its warp's groups and with each of 8 warps, and twice
// with the bias and what C was; values of the reference are rounded twice. Each time it is off by 2^-24 of
// what is summed, at most of the sum of all sizes.
int expect_sums(const Grouped& product, float before) {
  const std::vector<float> c = product.run(before);
  const std::int64_t depth = product.depth();
  const auto roundings = static_cast<double>(32 + 3 + (depth / kGroupInputs + 7) / 8 + 8 + 2 + 2);
  std::int64_t row = 0;
  int wrong = 0, checked = 0, untouched = 0;
  for (std::size_t g = 0; g < product.sizes.size(); ++g) {
    const auto of = static_cast<std::int64_t>(g), end = row + product.sizes[g];
    for (std::int64_t n = 0; n < product.columns(); ++n) {
      const std::vector<float> values = values_of_column(product.weights, of, depth, n);
      const std::vector<double> sizes = sizes_of_column(product.weights, of, values, n);
      for (std::int64_t r = row; r < end; ++r) {
        const std::int64_t from = product.lookup.empty() ? r : product.lookup[static_cast<std::size_t>(r)];
        const bfloat16* const x = product.a.data<bfloat16>() + from * depth;
        double sum = product.accumulate ? before : 0.0, size = std::abs(sum);
        if (product.bias.defined()) {
          const double bias = static_cast<float>(product.bias.data<bfloat16>()[of * product.columns() + n]);
          sum += bias, size += std::abs(bias);
        }
        for (std::size_t k = 0; k < values.size(); ++k) {
          const double input = static_cast<float>(x[k]);
          sum += input * values[k], size += std::abs(input) * sizes[k];
        }
        double tolerance = roundings * size * 0x1p-24;
        if (product.c_dtype == DType::bf16) tolerance += (std::abs(sum) + tolerance) * 0x1p-8;
        wrong += std::abs(c[static_cast<std::size_t>(r * product.pitch() + n)] - sum) <= tolerance ? 0 : 1;
        ++checked;
      }
    }
    row = end;
  }
  for (std::int64_t r = 0; r < row + Grouped::kMore; ++r) {
    for (std::int64_t n = r < row ? product.columns() : 0; n < product.pitch(); ++n)
      untouched += c[static_cast<std::size_t>(r * product.pitch() + n)] == before ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(untouched, (row + Grouped::kMore) * product.pitch() - row * product.columns());
  return checked;
}

// The depth is 44 groups of inputs, five or six a warp: more than are on their way at once. Of the two blocks
// of columns the second one is half outside.
constexpr std::int64_t kDepth = 1408, kColumnBlocks = 3;

Shape weights_of(DType packed, std::int64_t groups, std::int64_t depth = kDepth) {
  return {groups, depth / block_inputs(packed), kColumnBlocks};
}

TEST(FewRowsPacked, GroupsOfEverySizeInEveryFormat) {
  const std::vector<std::int32_t> sizes = {0, 1, 5, 8, 9, 33, 64, 0};
  std::uint32_t seed = 1;
  for (const DType packed : packed_types()) {
    SCOPED_TRACE(name_of(packed));
    const Grouped product{.a = random_rows({120, kDepth}, ++seed),
                          .weights = packed_weights(packed, weights_of(packed, 8), false, ++seed),
                          .sizes = sizes};
    EXPECT_EQ(expect_sums(product, 7), 120 * kColumnBlocks * kBlockOutputs);
  }
}

TEST(FewRowsPacked, AllThatAProductMayHave) {
  constexpr std::int64_t kShort = 256;
  std::uint32_t seed = 100;
  for (const DType packed : {DType::packed_int4a, DType::packed_q6_k}) {
    for (const std::vector<std::int32_t>& sizes :
         {std::vector<std::int32_t>{8}, {9, 0, 7}, {0, 30, 2}, {70, 3, 0}, {130, 1, 0}}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(packed), sizes[0]));
      const std::int64_t groups = std::ssize(sizes),
                         rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
      Grouped product{.a = random_rows({rows, kShort}, ++seed),
                      .weights = packed_weights(packed, weights_of(packed, groups, kShort), false, ++seed),
                      .sizes = sizes,
                      .c_dtype = DType::bf16,
                      .bias = random_rows({groups, kColumnBlocks * kBlockOutputs}, ++seed)};
      EXPECT_GT(expect_sums(product, 3), 0);
      product.c_dtype = DType::f32;
      product.accumulate = true;
      product.lookup.resize(static_cast<std::size_t>(rows));
      std::iota(product.lookup.rbegin(), product.lookup.rend(), 0);
      EXPECT_GT(expect_sums(product, 3), 0);
    }
  }
}

TEST(FewRowsPacked, ARowHasTheSameBitsAloneAndAmongOthers) {
  std::uint32_t seed = 200;
  for (const DType packed : packed_types()) {
    SCOPED_TRACE(name_of(packed));
    const Tensor weights = packed_weights(packed, weights_of(packed, 2), false, ++seed);
    const Tensor a = random_rows({80, kDepth}, ++seed);
    const std::vector<float> expected = Grouped{.a = a, .weights = weights, .sizes = {64, 16}}.run();
    // Row `first` of the group of 64 is the first row, alone or with those that follow: one, two, four or
    // eight tiles of rows.
    for (const auto& [first, count] : {std::pair<std::int32_t, std::int32_t>{0, 1}, {63, 1}, {20, 9}}) {
      for (const std::int32_t others : {7, 20, 50, 110}) {
        Grouped alone{.a = a, .weights = weights, .sizes = {count, others}};
        alone.lookup.resize(static_cast<std::size_t>(count + others), 70);
        std::iota(alone.lookup.begin(), alone.lookup.begin() + count, first);
        const std::vector<float> found = alone.run();
        const auto width = static_cast<std::size_t>(alone.columns()),
                   pitch = static_cast<std::size_t>(alone.pitch());
        for (int i = 0; i < count; ++i)
          EXPECT_EQ(
              0, std::memcmp(&found[static_cast<std::size_t>(i) * pitch],
                             &expected[static_cast<std::size_t>(first + i) * pitch], width * sizeof(float)))
              << first + i << " beside " << others;
      }
    }
  }
}

TEST(FewRowsPacked, TheSameBitsWhenCopiesEndLateOrEarly) {
  const DType packed = DType::packed_q5_k;
  const Grouped product{.a = random_rows({20, kDepth}, 301),
                        .weights = packed_weights(packed, weights_of(packed, 2), false, 302),
                        .sizes = {13, 7}};
  const std::vector<float> expected = product.run();
  emulator::in_all_timings([&] { EXPECT_EQ(product.run(), expected); });
}

// Rows with a single one, so that C is the weights, exactly: every number of a format, in every place.
TEST(FewRowsPacked, EveryNumberIsUnpackedExactly) {
  constexpr std::int64_t kInputs = 128;
  for (const DType packed : packed_types()) {
    SCOPED_TRACE(name_of(packed));
    const Tensor a = random_rows({kInputs, kInputs}, 401);
    for (std::int64_t i = 0; i < a.size(); ++i)
      a.data<bfloat16>()[i] = bfloat16(i % (kInputs + 1) == 0 ? 1.0f : 0.0f);
    const Tensor weights = packed_weights(packed, weights_of(packed, 2, kInputs), true, 402);
    // Two groups with half the rows each.
    const Grouped product{.a = a, .weights = weights, .sizes = {64, 64}};
    const std::vector<float> c = product.run();
    for (std::int64_t n = 0; n < product.columns(); ++n) {
      for (const std::int64_t of : {0, 1}) {
        const std::vector<float> values = values_of_column(weights, of, kInputs, n);
        for (std::int64_t k = of * 64; k < of * 64 + 64; ++k)
          ASSERT_EQ(c[static_cast<std::size_t>(k * product.pitch() + n)], values[static_cast<std::size_t>(k)])
              << k << " " << n;
      }
    }
  }
}

TEST(FewRowsPacked, Fp8ThatIsNoNumberGivesNone) {
  const Tensor weights = packed_weights(DType::packed_fp8, weights_of(DType::packed_fp8, 1, 128), true, 501);
  PackedGroup group = read_group(DType::packed_fp8, weights.raw(), 3, 2);
  for (const int none : {0x7f, 0xff}) {
    group.numbers.back() = static_cast<std::int8_t>(none);
    write_group(DType::packed_fp8, group, weights.raw(), 3, 2);
    const Grouped product{.a = random_rows({5, 128}, 502), .weights = weights, .sizes = {5}};
    const std::vector<float> c = product.run();
    for (std::int64_t row = 0; row < 5; ++row) {
      for (std::int64_t n = 0; n < product.columns(); ++n)
        EXPECT_EQ(std::isnan(c[static_cast<std::size_t>(row * product.pitch() + n)]), n == 3);
    }
  }
}

TEST(FewRowsPacked, BatchesWithoutGroups) {
  const DType packed = DType::packed_int8;
  const std::int64_t depth = 96, columns = kColumnBlocks * kBlockOutputs;
  const Tensor weights = packed_weights(packed, weights_of(packed, 2, depth), true, 601);
  for (const std::int64_t rows : {4, 8, 17, 64}) {
    const Tensor a = random_rows({2, rows, depth}, 602), c(DType::f32, {2, rows, columns});
    OnGpu rows_there(a), weights_there(weights), c_there(c);
    const DeviceProduct p{.dtype = DType::bf16,
                          .weight_dtype = packed,
                          .m = rows,
                          .n = columns,
                          .terms = {{.a = rows_there.data(),
                                     .b = weights_there.data(),
                                     .k = depth,
                                     .lda = depth,
                                     .ldb = weights.dim(2)}},
                          .ldc = columns,
                          .c = c_there.data(),
                          .batch = 2,
                          .a_stride = rows * depth,
                          .b_stride = weights.dim(1) * weights.dim(2),
                          .c_stride = rows * columns};
    ASSERT_EQ(few_rows_packed_refuses(alone(p)), nullptr);
    few_rows_packed_product(alone(p));
    c_there.read(c);
    // Groups of as many rows give the expected bits.
    const auto of_group = static_cast<std::int32_t>(rows);
    const Grouped same{.a = a, .weights = weights, .sizes = {of_group, of_group}};
    const std::vector<float> expected = same.run();
    for (std::int64_t row = 0; row < 2 * rows; ++row)
      EXPECT_EQ(0, std::memcmp(c.data<float>() + row * columns,
                               &expected[static_cast<std::size_t>(row * same.pitch())],
                               static_cast<std::size_t>(columns) * sizeof(float)))
          << row;
  }
}

TEST(FewRowsPacked, OthersAreLeftToTheOtherRows) {
  const Tensor weights = packed_weights(DType::packed_int4, weights_of(DType::packed_int4, 1, 64), true, 701);
  const Tensor a = random_rows({65, 64}, 702), c(DType::f32, {65, 48});
  const DeviceProduct few{.dtype = DType::bf16,
                          .weight_dtype = weights.dtype(),
                          .m = 4,
                          .n = 48,
                          .terms = {{.a = a.raw(), .b = weights.raw(), .k = 64, .lda = 64, .ldb = 3}},
                          .ldc = 48,
                          .c = c.raw()};
  EXPECT_EQ(few_rows_packed_refuses(alone(few)), nullptr);
  const auto refused = [&](const auto& change) {
    DeviceProduct other = few;
    change(other);
    return few_rows_packed_refuses(alone(other)) != nullptr;
  };
  EXPECT_FALSE(refused([](DeviceProduct& p) { p.m = 64; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.m = 65; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.weight_dtype = DType::bf16; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.m = 1; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.groups = Groups::rows, p.batch = 2, p.m = 3; }));
  EXPECT_FALSE(refused([](DeviceProduct& p) { p.groups = Groups::rows, p.batch = 2, p.m = 4; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.groups = Groups::rows, p.batch = 2, p.m = 129; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.dtype = DType::f32; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.transpose_a = true; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.transpose_b = true; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.term_count = 2; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.groups = Groups::depth; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.terms[0].lda = 66; }));
  EXPECT_TRUE(refused([&](DeviceProduct& p) { p.terms[0].a = a.data<bfloat16>() + 1; }));
}

}  // namespace
}  // namespace switchyard::gpu
