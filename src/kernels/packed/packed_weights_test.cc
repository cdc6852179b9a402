#include "kernels/packed/packed_weights.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "core/half.h"
#include "core/tensor.h"
#include "core/testing.h"
#include "kernels/packed/packed_block.h"
#include "kernels/product/gemm.h"
#include "kernels/product/grouped_matmul.h"
#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;
using kernel_test::every_isa;
using kernel_test::near;
using kernel_test::same;

constexpr DType kRowTypes[] = {DType::f32, DType::bf16};

Tensor packed_of(const Array& dense, const Shape& blocks, DType packed, Isa isa) {
  const ScopedIsa cap(isa);
  ThreadPool pool(2);
  const Tensor out(packed, blocks);
  pack_weights(pool, {dense.view(unpacked_shape(packed, blocks)), out.view()});
  return out;
}

Array values_of_blocks(const Tensor& packed, DType dtype, Isa isa) {
  const ScopedIsa cap(isa);
  ThreadPool pool(2);
  const Shape shape = unpacked_shape(packed.dtype(), packed.shape());
  Array out(dtype, num_elements(shape));
  unpack_weights(pool, {packed.view(), out.view(shape)});
  return out;
}

// Blocks of groups with random numbers; set(group, random) gives them their scales and offsets.
template <typename Set>
Tensor blocks_of_groups(DType packed, const Shape& shape, std::uint32_t seed, const Set& set) {
  std::mt19937 random(seed);
  const Tensor blocks(packed, shape);
  const PackedFormat& range = packed_format(packed);
  for (std::int64_t b = 0; b < blocks.size(); ++b) {
    std::byte* const block = blocks.raw() + static_cast<std::size_t>(b) * size_of(packed);
    for (std::int64_t output = 0; output < kBlockOutputs; ++output) {
      PackedGroup group;  // with the scale and offset of the block
      set(group, random);
      for (std::int64_t g = 0; g < groups_of(packed); ++g) {
        for (auto& number : group.numbers)
          number =
              static_cast<std::int8_t>(range.least_number + static_cast<int>(random() % 256) % range.numbers);
        if (is_k_quant(packed)) {
          const int sign = packed == DType::packed_q6_k && random() % 2 == 0 ? -1 : 1;
          for (auto& factor : group.scale_factors)
            factor = static_cast<std::int16_t>(sign * (1 + static_cast<int>(random() % 3)));
          if (scales_of(packed) == 1) group.scale_factors[1] = group.scale_factors[0];
          group.offset_factor =
              has_offset(packed) ? static_cast<std::uint8_t>(random() % 4) : std::uint8_t{0};
        }
        write_group(packed, group, block, output, g);
      }
    }
  }
  return blocks;
}

std::uint32_t scale_bits(DType packed, float scale) {
  return packed == DType::packed_fp8 ? std::bit_cast<std::uint32_t>(scale) : float_to_half(scale);
}

// Scales and offsets are powers of two: products with small integers are exact.
Tensor exact_blocks(DType packed, const Shape& shape, std::uint32_t seed) {
  return blocks_of_groups(packed, shape, seed, [&](PackedGroup& group, std::mt19937& random) {
    const float scale = std::ldexp(1.0f, static_cast<int>(random() % 3) - 1);
    group.scale = packed == DType::packed_mxfp4 ? static_cast<std::uint32_t>(126 + random() % 3)
                                                : scale_bits(packed, random() % 2 == 0 ? scale : -scale);
    if (has_offset(packed)) group.offset = float_to_half(static_cast<float>(random() % 5) - 2.0f);
  });
}

// Scales of any bits, and sizes as weights have them.
Tensor weight_blocks(DType packed, const Shape& shape, std::uint32_t seed) {
  const auto most = static_cast<float>(packed_format(packed).numbers);
  const float largest = is_k_quant(packed) ? 1.0f / 3 : 1.0f;  // less by the factors
  return blocks_of_groups(packed, shape, seed, [&](PackedGroup& group, std::mt19937& random) {
    const auto draw = [&] { return static_cast<float>(random() % 4096) / 4096.0f - 0.5f; };
    group.scale = packed == DType::packed_mxfp4 ? static_cast<std::uint32_t>(120 + random() % 3)
                                                : scale_bits(packed, draw() * 0.2f * largest / most);
    if (has_offset(packed)) group.offset = float_to_half(draw() * 0.1f * largest);
  });
}

TEST(Half, EveryHalfSurvivesTheWayThere) {
  int checked = 0;
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float value = half_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_half(value), bits);
    ++checked;
  }
  EXPECT_GT(checked, 60000);
  EXPECT_EQ(float_to_half(65519.9f), 0x7bffu);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00u);
  EXPECT_EQ(float_to_half(0x1p-25f), 0u) << "a tie goes to the even";
  EXPECT_EQ(float_to_half(0x1.8p-24f), 2u);
  EXPECT_EQ(float_to_half(1.0f + 0x1p-11f), 0x3c00u);
}

TEST(PackedBlock, HoldsWhatIsWritten) {
  for (const DType packed : packed_types()) {
    const Tensor blocks = exact_blocks(packed, {1, 1}, 7), copy(packed, {1, 1});
    std::memset(copy.raw(), 0xff, size_of(packed));
    int differ = 0;
    for (std::int64_t g = 0; g < groups_of(packed); ++g) {
      for (std::int64_t n = 0; n < kBlockOutputs; ++n) {
        const PackedGroup group = read_group(packed, blocks.raw(), n, g);
        const PackedFormat& range = packed_format(packed);
        for (const int number : group.numbers)
          differ += number < range.least_number || number >= range.least_number + range.numbers ? 1 : 0;
        write_group(packed, group, copy.raw(), n, g);
      }
    }
    EXPECT_EQ(differ, 0) << name_of(packed);
    EXPECT_EQ(0, std::memcmp(copy.raw(), blocks.raw(), size_of(packed))) << name_of(packed);
  }
}

TEST(PackedBlock, ValuesByHand) {
  PackedGroup group;
  group.scale = float_to_half(0.5f);
  group.offset = float_to_half(-1.0f);
  group.numbers[0] = -8;
  group.numbers[31] = 7;
  EXPECT_EQ(values_of(DType::packed_int4, group)[0], -4.0f);
  EXPECT_EQ(values_of(DType::packed_int4, group)[31], 3.5f);
  EXPECT_EQ(values_of(DType::packed_int8, group)[1], 0.0f);
  EXPECT_EQ(values_of(DType::packed_int4a, group)[31], 2.5f);
  group.scale = 128;  // 2
  group.numbers[0] = 15;
  EXPECT_EQ(values_of(DType::packed_mxfp4, group)[0], -12.0f);
  EXPECT_EQ(values_of(DType::packed_mxfp4, group)[31], 12.0f);
}

TEST(PackedBlock, ValuesOfKQuantsByHand) {
  PackedGroup group;
  group.scale = float_to_half(0.5f);
  group.offset = float_to_half(0.25f);
  group.scale_factors = {3, -2};
  group.offset_factor = 5;
  group.numbers[0] = 15;
  group.numbers[31] = 7;
  EXPECT_EQ(values_of(DType::packed_q4_k, group)[0], 22.5f - 1.25f);
  EXPECT_EQ(values_of(DType::packed_q5_k, group)[1], -1.25f);
  EXPECT_EQ(values_of(DType::packed_q6_k, group)[0], 22.5f);
  EXPECT_EQ(values_of(DType::packed_q6_k, group)[31], -7.0f);
  EXPECT_EQ(values_of(DType::packed_int5a, group)[31], 3.75f);
}

TEST(PackedBlock, EveryIsaPacksAndUnpacksAsTheTwinDoes) {
  const Shape shape{3, 2, 3};
  for (const DType packed : packed_types(true)) {
    const std::int64_t size = num_elements(unpacked_shape(packed, shape));
    for (const DType dtype : kRowTypes) {
      Array dense = Array::normal(dtype, size, 5, 0.02f);
      for (std::int64_t i = 0; i < 32 * 48; i += 48) dense.set(i, 0);  // a group of zeros
      const Tensor expected = packed_of(dense, shape, packed, Isa::ref);
      const Array values = values_of_blocks(expected, dtype, Isa::ref);
      for (const Isa isa : every_isa()) {
        EXPECT_EQ(0,
                  std::memcmp(packed_of(dense, shape, packed, isa).raw(), expected.raw(), expected.bytes()))
            << name_of(packed) << " " << name_of(isa);
        EXPECT_TRUE(same(values_of_blocks(expected, dtype, isa), values)) << name_of(packed) << name_of(isa);
      }
    }
  }
}

TEST(PackedBlock, EveryIsaHasEveryNumberOfFp8) {
  const Tensor blocks(DType::packed_fp8, {1, 2});
  PackedGroup group;
  int expected_values = 0, differ = 0;
  for (int n = 0; n < 2 * 4 * 16; ++n) {  // groups of 32 of 8 groups of 16 outputs
    group.scale = std::bit_cast<std::uint32_t>(0.3f);
    for (int i = 0; i < 32; ++i) {
      const int bits = (n * 32 + i) & 255;
      group.numbers[static_cast<std::size_t>(i)] =
          static_cast<std::int8_t>((bits & 127) == 127 ? 0 : bits);  // no NaN
    }
    write_group(DType::packed_fp8, group,
                blocks.raw() + static_cast<std::size_t>(n / 64) * size_of(DType::packed_fp8), n % 16,
                n / 16 % 4);
  }
  const Array values = values_of_blocks(blocks, DType::f32, Isa::ref);
  for (std::int64_t output = 0; output < 32; ++output) {
    for (std::int64_t input = 0; input < 128; ++input) {
      const auto n = output / 16 * 64 + input / 32 * 16 + output % 16;
      const auto bits = static_cast<int>(n * 32 + input % 32) & 255;
      if ((bits & 127) == 127) continue;
      const int exponent = bits >> 3 & 15;
      const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(bits & 7), -9)
                                            : std::ldexp(static_cast<float>(8 + (bits & 7)), exponent - 10);
      differ += values.at(input * 32 + output) != 0.3f * (bits >= 128 ? -magnitude : magnitude) ? 1 : 0;
      ++expected_values;
    }
  }
  EXPECT_EQ(differ, 0);
  EXPECT_EQ(expected_values, 32 * 128 / 256 * 254);
  for (const Isa isa : every_isa())
    EXPECT_TRUE(same(values_of_blocks(blocks, DType::f32, isa), values)) << name_of(isa);
}

TEST(PackedBlock, EveryIsaUnpacksEveryTypeAsTheTwinDoes) {
  for (const DType packed : packed_types()) {
    const Tensor blocks = weight_blocks(packed, {3, 2, 3}, 6);
    for (const DType dtype : kRowTypes) {
      const Array values = values_of_blocks(blocks, dtype, Isa::ref);
      for (const Isa isa : every_isa())
        EXPECT_TRUE(same(values_of_blocks(blocks, dtype, isa), values)) << name_of(packed) << name_of(isa);
    }
  }
}

TEST(PackedBlock, ErrorsAreThoseOfTheBits) {
  const Shape shape{8, 8};
  const Array dense = Array::normal(DType::f32, num_elements(unpacked_shape(DType::packed_int8, shape)), 3);
  const auto relative_error = [&](DType packed) {
    const Array values = values_of_blocks(packed_of(dense, shape, packed, Isa::ref), DType::f32, Isa::ref);
    double error = 0, all = 0;
    for (std::int64_t i = 0; i < dense.size(); ++i) {
      error += std::pow(values.value(i) - dense.value(i), 2);
      all += std::pow(dense.value(i), 2);
    }
    return std::sqrt(error / all);
  };
  // A group of 32 normal values reaches ±2.1 or so: steps of 2.1 / 127 and 2.1 / 8 have errors of step / √12.
  EXPECT_LT(relative_error(DType::packed_int8), 0.006);
  EXPECT_LT(relative_error(DType::packed_int4), 0.085);
  EXPECT_LT(relative_error(DType::packed_int4a), 0.09);
  EXPECT_LT(relative_error(DType::packed_mxfp4), 0.13);
  EXPECT_GT(relative_error(DType::packed_int8), 0.003);
}

struct ProductCase {
  std::int64_t m, n, k;
  DType packed, dtype, c_dtype;
  bool accumulate;
};

Array product(const ProductCase& c, const Array& a, const Tensor& blocks, Isa isa) {
  const ScopedIsa cap(isa);
  ThreadPool pool(2);
  Array out(c.c_dtype, c.m * c.n);
  if (c.accumulate) out = Array::integers(c.c_dtype, c.m * c.n, 9);
  gemm(pool,
       {.a = a.view({c.m, c.k}), .b = blocks.view(), .c = out.view({c.m, c.n}), .accumulate = c.accumulate});
  return out;
}

TEST(PackedGemm, EveryIsaEqualsTheTwinOnIntegers) {
  for (const DType packed : packed_types()) {
    for (const DType dtype : kRowTypes) {
      for (const DType c_dtype : kRowTypes) {
        for (const auto& [n, rows] : {std::pair<std::int64_t, std::int64_t>{16, 1}, {80, 3}, {544, 2}}) {
          const std::int64_t k = rows * block_inputs(packed);
          const Tensor blocks = exact_blocks(packed, {rows, n / kBlockOutputs}, 11);
          for (const std::int64_t m : {1, 2, 3, 4, 5, 7, 8, 9, 17, 33, 70}) {
            const ProductCase c{m, n, k, packed, dtype, c_dtype, m % 2 == 0};
            const Array a = Array::integers(dtype, m * k, static_cast<std::uint32_t>(m), 2);
            const Array expected = product(c, a, blocks, Isa::ref);
            for (const Isa isa : every_isa())
              EXPECT_TRUE(same(product(c, a, blocks, isa), expected))
                  << name_of(packed) << " " << m << "x" << n << "x" << k << " " << name_of(isa);
          }
        }
      }
    }
  }
}

double largest(const Array& x) {
  double most = 0;
  for (std::int64_t i = 0; i < x.size(); ++i) most = std::max(most, std::abs(static_cast<double>(x.at(i))));
  return most;
}

TEST(PackedGemm, EveryIsaIsNearTheTwinOnWeights) {
  const std::int64_t n = 96, k = 256;
  for (const DType packed : packed_types()) {
    const Tensor blocks = weight_blocks(packed, {k / block_inputs(packed), n / kBlockOutputs}, 21);
    const Array weights = values_of_blocks(blocks, DType::f32, Isa::ref);
    double squares = 0;
    for (std::int64_t i = 0; i < n * k; ++i) squares += weights.at(i) * weights.at(i);
    const double weight_size = std::sqrt(squares / (n * k));
    for (const DType dtype : kRowTypes) {
      for (const std::int64_t m : {1, 6, 40}) {
        const ProductCase c{m, n, k, packed, dtype, DType::f32, false};
        const Array a = Array::normal(dtype, m * k, 22);
        const Array expected = product(c, a, blocks, Isa::ref);
        // Many bf16 rows have the weights rounded to bf16: each of the k products is off by 2^-9 of its size.
        // Few have integers for inputs, off by at most 2^-15 of a group's largest: at most five times the
        // deviation of a sum of k products with weights of this size.
        const auto deviation = std::sqrt(k / 3.0) * weight_size * largest(a) * 0x1p-15;
        const float absolute = dtype == DType::f32 ? 4e-6f
                               : m > 8             ? 8e-3f
                                                   : static_cast<float>(5 * deviation);
        for (const Isa isa : every_isa())
          EXPECT_TRUE(near(product(c, a, blocks, isa), expected, 0, absolute))
              << name_of(packed) << " " << m << " " << name_of(dtype) << " " << name_of(isa);
      }
    }
  }
}

TEST(PackedGemm, Bfloat16RowsGiveTheSameBitsOnEveryIsa) {
  const std::int64_t n = 96, k = 256;
  int compared = 0;
  for (const DType packed : packed_types()) {
    if (packed == DType::packed_fp8) continue;  // no integers
    const Tensor blocks = weight_blocks(packed, {k / block_inputs(packed), n / kBlockOutputs}, 23);
    for (const std::int64_t m : {1, 3, 8}) {
      const Array a = Array::normal(DType::bf16, m * k, 24);
      const ProductCase c{m, n, k, packed, DType::bf16, DType::f32, false};
      const Array expected = product(c, a, blocks, Isa::avx2);
      for (const Isa isa : every_isa()) {
        if (isa == Isa::ref || isa == Isa::avx2) continue;
        EXPECT_TRUE(same(product(c, a, blocks, isa), expected)) << name_of(packed) << " " << name_of(isa);
        ++compared;
      }
    }
  }
  if (compared == 0) GTEST_SKIP() << "this machine has AVX2 at most";
}

TEST(PackedGemm, Bfloat16RowsOfNoNumbersGiveNone) {
  const std::int64_t n = 32, k = 256;
  const Tensor blocks = weight_blocks(DType::packed_int4, {k / 32, n / 16}, 25);
  for (const float none : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Array a = Array::normal(DType::bf16, 2 * k, 26);
    a.set(40, none);
    for (const Isa isa : every_isa()) {
      const Array c = product({2, n, k, DType::packed_int4, DType::bf16, DType::f32, false}, a, blocks, isa);
      int finite = 0;
      for (std::int64_t j = 0; j < 2 * n; ++j) finite += std::isfinite(c.at(j)) ? 1 : 0;
      EXPECT_EQ(finite, n) << name_of(isa);
    }
  }
}

// A row's result does not depend on the rows beside it.
TEST(PackedGemm, FewRowsGiveTheBitsOfOne) {
  const std::int64_t n = 64, k = 128, most = 8;
  for (const DType packed : packed_types()) {
    const Tensor blocks = weight_blocks(packed, {k / block_inputs(packed), n / kBlockOutputs}, 31);
    for (const DType dtype : kRowTypes) {
      const Array a = Array::normal(dtype, most * k, 32);
      for (const Isa isa : every_isa()) {
        const Array all = product({most, n, k, packed, dtype, DType::f32, false}, a, blocks, isa);
        const Array one = product({1, n, k, packed, dtype, DType::f32, false}, a, blocks, isa);
        int equal = 0;
        for (std::int64_t j = 0; j < n; ++j) equal += all.at(j) == one.at(j) ? 1 : 0;
        EXPECT_EQ(equal, n) << name_of(packed) << " " << name_of(isa);
      }
    }
  }
}

TEST(PackedGmm, GroupsOfAnySizeOnEveryIsa) {
  const std::int64_t k = 128, n = 48;
  const std::int32_t sizes[] = {0, 3, 12, 1, 0, 9};
  const std::int64_t rows = 25;
  for (const auto& [packed, dtype] : {std::pair{DType::packed_int4, DType::f32},
                                      {DType::packed_int4, DType::bf16},
                                      {DType::packed_q5_k, DType::f32}}) {
    const Shape shape{6, k / block_inputs(packed), n / kBlockOutputs};
    const Tensor blocks[] = {exact_blocks(packed, shape, 41), exact_blocks(packed, shape, 42)};
    const DType rows_dtype = dtype;
    const Array x = Array::integers(rows_dtype, rows * k, 43, 2);
    const auto run = [&](Isa isa, bool pair) {
      const ScopedIsa cap(isa);
      ThreadPool pool(2);
      std::vector<Array> out(3, Array(rows_dtype, rows * n));
      const TensorView groups = TensorView::of_host(sizes, {6});
      if (!pair) {
        gmm(pool, {x.view({rows, k}), blocks[0].view(), {}, groups, out[0].view({rows, n})});
        return out;
      }
      gmm_pair(pool, {.x = x.view({rows, k}),
                      .index = {},
                      .rhs_0 = blocks[0].view(),
                      .rhs_1 = blocks[1].view(),
                      .group_sizes = groups,
                      .out_0 = out[0].view({rows, n}),
                      .out_1 = out[1].view({rows, n}),
                      .row_weights = {},
                      .hidden = {}});
      return out;
    };
    const auto single = run(Isa::ref, false), expected = run(Isa::ref, true);
    for (const Isa isa : every_isa()) {
      EXPECT_TRUE(same(run(isa, false)[0], single[0])) << name_of(isa);
      const auto found = run(isa, true);
      EXPECT_TRUE(same(found[0], expected[0])) << name_of(isa);
      EXPECT_TRUE(same(found[1], expected[1])) << name_of(isa);
    }
  }
}

TEST(PackedWeights, SayWhereAValueIsNotFinite) {
  ThreadPool pool(1);
  for (const DType packed : packed_types(true)) {
    for (const DType dtype : kRowTypes) {
      for (const Isa isa : every_isa()) {
        const ScopedIsa cap(isa);
        Array dense = Array::normal(dtype, 64 * 16, 5);
        const Tensor out(packed, {2, 1});
        EXPECT_TRUE(pack_weights(pool, {dense.view({64, 16}), out.view()})) << name_of(isa);
        dense.set(64 * 16 - 1, INFINITY);
        EXPECT_FALSE(pack_weights(pool, {dense.view({64, 16}), out.view()})) << name_of(isa);
      }
    }
  }
}

// A group's scale is float16, or a power of two.
TEST(PackedWeights, SayWhereAScaleWouldBeInfinite) {
  ThreadPool pool(1);
  for (const DType packed : packed_types(true)) {
    for (const Isa isa : every_isa()) {
      const ScopedIsa cap(isa);
      const Tensor out(packed, {2, 1});
      for (const float large : {6e4f, 9e6f, -9e6f, 3e38f}) {
        Array dense = Array::normal(DType::f32, 64 * 16, 5);
        dense.set(64 * 16 - 1, large);
        const bool holds = packed == DType::packed_mxfp4 || large == 6e4f;
        EXPECT_EQ(pack_weights(pool, {dense.view({64, 16}), out.view()}), holds)
            << name_of(packed) << " " << name_of(isa) << " " << large;
      }
    }
  }
}

TEST(PackedWeightsDeathTest, ShapesMustFit) {
  ThreadPool pool(1);
  const Tensor dense = Tensor::zeros(DType::f32, {32, 24}), packed(DType::packed_int8, {1, 1});
  expect_broken_check([&] { pack_weights(pool, {dense.view(), packed.view()}); }, "blocks [1,1]");
}

}  // namespace
}  // namespace switchyard
