#include "kernels/packed_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "core/half.h"
#include "core/tensor.h"
#include "kernels/elementwise_test_data.h"
#include "kernels/gemm.h"
#include "kernels/grouped_matmul.h"
#include "kernels/packed_block.h"

namespace switchyard {
namespace {

using kernel_test::Array;
using kernel_test::every_isa;
using kernel_test::near;
using kernel_test::same;

constexpr DType kPackedTypes[] = {DType::packed_int8, DType::packed_int4, DType::packed_int4a,
                                  DType::packed_mxfp4};
constexpr DType kRowTypes[] = {DType::f32, DType::bf16};

Tensor packed_of(const Array& dense, const Shape& blocks, DType packed, Isa isa) {
  const ScopedIsa cap(isa);
  ThreadPool pool(2);
  const Tensor out(packed, blocks);
  pack_weights(pool, {dense.view(unpacked_shape(blocks)), out.view()});
  return out;
}

Array values_of_blocks(const Tensor& packed, DType dtype, Isa isa) {
  const ScopedIsa cap(isa);
  ThreadPool pool(2);
  const Shape shape = unpacked_shape(packed.shape());
  Array out(dtype, num_elements(shape));
  unpack_weights(pool, {packed.view(), out.view(shape)});
  return out;
}

// Blocks whose numbers are random and whose scales (and offsets) are powers of two: products with small
// integers are exact.
Tensor exact_blocks(DType packed, const Shape& shape, std::uint32_t seed) {
  std::mt19937 random(seed);
  const Tensor blocks(packed, shape);
  for (std::int64_t b = 0; b < blocks.size(); ++b) {
    std::byte* const block = blocks.raw() + static_cast<std::size_t>(b) * size_of(packed);
    for (std::int64_t output = 0; output < kBlockOutputs; ++output) {
      PackedGroup group;
      const float scale = std::ldexp(1.0f, static_cast<int>(random() % 3) - 1);
      group.scale = packed == DType::packed_mxfp4 ? static_cast<std::uint16_t>(126 + random() % 3)
                                                  : float_to_half(random() % 2 == 0 ? scale : -scale);
      if (packed == DType::packed_int4a)
        group.offset = float_to_half(static_cast<float>(random() % 5) - 2.0f);
      for (auto& number : group.numbers) {
        const int bits = static_cast<int>(random() % 256);
        number = static_cast<std::int8_t>(packed == DType::packed_int8   ? bits % 255 - 127
                                          : packed == DType::packed_int4 ? bits % 16 - 8
                                                                         : bits % 16);
      }
      write_group(packed, group, block, output);
    }
  }
  return blocks;
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
  for (const DType packed : kPackedTypes) {
    const Tensor blocks = exact_blocks(packed, {1, 1}, 7);
    std::vector<PackedGroup> before;
    for (std::int64_t n = 0; n < kBlockOutputs; ++n) before.push_back(read_group(packed, blocks.raw(), n));
    const Tensor copy(packed, {1, 1});
    std::memset(copy.raw(), 0xff, size_of(packed));
    for (std::int64_t n = 0; n < kBlockOutputs; ++n)
      write_group(packed, before[static_cast<std::size_t>(n)], copy.raw(), n);
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

TEST(PackedBlock, EveryIsaPacksAndUnpacksAsTheTwinDoes) {
  const Shape shape{3, 2, 3};
  const std::int64_t size = num_elements(unpacked_shape(shape));
  for (const DType packed : kPackedTypes) {
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

TEST(PackedBlock, ErrorsAreThoseOfTheBits) {
  const Shape shape{8, 8};
  const Array dense = Array::normal(DType::f32, num_elements(unpacked_shape(shape)), 3);
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
  for (const DType packed : kPackedTypes) {
    for (const DType dtype : kRowTypes) {
      for (const DType c_dtype : kRowTypes) {
        for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{16, 32}, {80, 96}, {544, 64}}) {
          const Tensor blocks = exact_blocks(packed, {k / kBlockInputs, n / kBlockOutputs}, 11);
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

TEST(PackedGemm, EveryIsaIsNearTheTwinOnWeights) {
  const std::int64_t n = 96, k = 256;
  for (const DType packed : kPackedTypes) {
    const Array dense = Array::normal(DType::f32, n * k, 21, 0.05f);
    const Tensor blocks = packed_of(dense, {k / kBlockInputs, n / kBlockOutputs}, packed, Isa::ref);
    for (const DType dtype : kRowTypes) {
      for (const std::int64_t m : {1, 6, 40}) {
        const ProductCase c{m, n, k, packed, dtype, DType::f32, false};
        const Array a = Array::normal(dtype, m * k, 22);
        const Array expected = product(c, a, blocks, Isa::ref);
        // Many bf16 rows have the weights rounded to bf16: each of the k products is off by 2^-9 of its size.
        const float absolute = dtype == DType::bf16 && m > 8 ? 8e-3f : 4e-6f;
        for (const Isa isa : every_isa())
          EXPECT_TRUE(near(product(c, a, blocks, isa), expected, 0, absolute))
              << name_of(packed) << " " << m << " " << name_of(dtype) << " " << name_of(isa);
      }
    }
  }
}

// A row's result does not depend on the rows beside it.
TEST(PackedGemm, FewRowsGiveTheBitsOfOne) {
  const std::int64_t n = 64, k = 128, most = 8;
  for (const DType packed : kPackedTypes) {
    const Tensor blocks = packed_of(Array::normal(DType::f32, n * k, 31), {k / 32, n / 16}, packed, Isa::ref);
    const Array a = Array::normal(DType::f32, most * k, 32);
    for (const Isa isa : every_isa()) {
      const Array all = product({most, n, k, packed, DType::f32, DType::f32, false}, a, blocks, isa);
      const Array one = product({1, n, k, packed, DType::f32, DType::f32, false}, a, blocks, isa);
      int equal = 0;
      for (std::int64_t j = 0; j < n; ++j) equal += all.at(j) == one.at(j) ? 1 : 0;
      EXPECT_EQ(equal, n) << name_of(packed) << " " << name_of(isa);
    }
  }
}

TEST(PackedGmm, GroupsOfAnySizeOnEveryIsa) {
  const std::int64_t k = 64, n = 48;
  const std::int32_t sizes[] = {0, 3, 12, 1, 0, 9};
  const std::int64_t rows = 25;
  const Tensor blocks[] = {exact_blocks(DType::packed_int4, {6, k / 32, n / 16}, 41),
                           exact_blocks(DType::packed_int4, {6, k / 32, n / 16}, 42)};
  for (const DType dtype : kRowTypes) {
    const Array x = Array::integers(dtype, rows * k, 43, 2);
    const auto run = [&](Isa isa, bool pair) {
      const ScopedIsa cap(isa);
      ThreadPool pool(2);
      std::vector<Array> out(3, Array(dtype, rows * n));
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
  for (const DType packed : kPackedTypes) {
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

TEST(PackedWeightsDeathTest, ShapesMustFit) {
  ThreadPool pool(1);
  const Tensor dense = Tensor::zeros(DType::f32, {32, 24}), packed(DType::packed_int8, {1, 1});
  EXPECT_DEATH(pack_weights(pool, {dense.view(), packed.view()}), "blocks \\[1,1\\]");
}

}  // namespace
}  // namespace switchyard
