#include "kernels/product/gemm.h"

#include <gtest/gtest.h>

#include <array>

#include "kernels/registry/record.h"
#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;
using kernel_test::every_isa;
using kernel_test::near;
using kernel_test::same;

struct Case {
  std::int64_t batch, m, n, k;
  bool transpose_a, transpose_b, accumulate;
  DType dtype, c_dtype;
  std::int64_t padding = 0;  // elements between the end of a row and the next
};

Array run(const Case& c, Isa isa, int threads, bool fractions = false) {
  const ScopedIsa cap(isa);
  ThreadPool pool(threads);
  const std::int64_t a_rows = c.transpose_a ? c.k : c.m, a_columns = c.transpose_a ? c.m : c.k;
  const std::int64_t b_rows = c.transpose_b ? c.n : c.k, b_columns = c.transpose_b ? c.k : c.n;
  const std::int64_t lda = a_columns + c.padding, ldb = b_columns + c.padding, ldc = c.n + c.padding;
  const auto make = fractions
                        ? [](DType d, std::int64_t n, std::uint32_t s) { return Array::normal(d, n, s); }
                        : [](DType d, std::int64_t n, std::uint32_t s) { return Array::integers(d, n, s); };
  const Array a = make(c.dtype, c.batch * a_rows * lda, 1), b = make(c.dtype, c.batch * b_rows * ldb, 2);
  Array out(c.c_dtype, c.batch * c.m * ldc);
  if (c.accumulate) out = make(c.c_dtype, out.size(), 3);
  for (std::int64_t i = 0; i < out.size(); ++i) {
    if (i % ldc >= c.n) out.set(i, 77.0f);  // between rows: must stay
  }
  const auto matrices = [&](DType dtype, const void* data, std::int64_t rows, std::int64_t columns,
                            std::int64_t leading) {
    return TensorView::of_host(dtype, data, {c.batch, rows, columns}, {rows * leading, leading, 1});
  };
  gemm(pool, {.a = matrices(c.dtype, a.data(), a_rows, a_columns, lda),
              .b = matrices(c.dtype, b.data(), b_rows, b_columns, ldb),
              .c = matrices(c.c_dtype, out.data(), c.m, c.n, ldc),
              .transpose_a = c.transpose_a,
              .transpose_b = c.transpose_b,
              .accumulate = c.accumulate});
  return out;
}

std::string describe(const Case& c, Isa isa) {
  return fmt::format("{} {}x{}x{}x{} transposed {} {} accumulate {} {} into {}", name_of(isa), c.batch, c.m,
                     c.n, c.k, c.transpose_a, c.transpose_b, c.accumulate, name_of(c.dtype),
                     name_of(c.c_dtype));
}

void expect_ref(const Case& c) {
  const Array expected = run(c, Isa::ref, 1);
  for (const Isa isa : every_isa()) EXPECT_TRUE(same(run(c, isa, 1), expected)) << describe(c, isa);
}

constexpr DType kDTypes[] = {DType::f32, DType::bf16};

TEST(Gemm, RefMultipliesByHand) {
  ThreadPool pool(1);
  const ScopedIsa cap(Isa::ref);
  const float a[] = {1, 2, 3, 4, 5, 6}, b[] = {1, 10, 100, 1000, 10000, 100000};
  float c[] = {1, 1, 1, 1};
  gemm(pool, {.a = TensorView::of_host(a, {2, 3}),
              .b = TensorView::of_host(b, {3, 2}),
              .c = TensorView::of_host(c, {2, 2}),
              .accumulate = true});
  EXPECT_EQ(std::vector<float>(c, c + 4), (std::vector<float>{30202, 302011, 60505, 605041}));
}

TEST(Gemm, EveryIsaEqualsRefOnIntegersOfEveryForm) {
  for (const DType dtype : kDTypes) {
    for (const DType c_dtype : kDTypes) {
      for (int flags = 0; flags < 8; ++flags) {
        for (const auto& [m, n, k] :
             {std::array<std::int64_t, 3>{1, 1, 1}, {33, 35, 37}, {12, 32, 64}, {45, 70, 300}}) {
          expect_ref(
              {1, m, n, k, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0, dtype, c_dtype, flags % 3});
        }
      }
    }
  }
}

TEST(Gemm, EveryIsaEqualsRefOnTails) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t size : {1, 2, 5, 15, 16, 17, 31, 32, 33, 63, 65}) {
      for (int flags = 0; flags < 4; ++flags) {
        const bool ta = (flags & 1) != 0, tb = (flags & 2) != 0;
        expect_ref({1, size, 7, 9, ta, tb, false, dtype, DType::f32});
        expect_ref({1, 7, size, 9, ta, tb, false, dtype, DType::f32});
        expect_ref({1, 7, 9, size, ta, tb, false, dtype, DType::f32});
      }
    }
  }
}

// Few rows have kernels of their own; up to how many, depends on the dtype and on how long the rows of B are.
TEST(Gemm, FewRowsOfShortAndLongMatrices) {
  for (const DType dtype : kDTypes) {
    for (const DType c_dtype : kDTypes) {
      for (const std::int64_t n : {70, 4100}) {
        for (std::int64_t m = 1; m <= 9; ++m) {
          expect_ref({1, m, n, 37, false, false, m % 2 == 0, dtype, c_dtype, m % 3});
          expect_ref({1, m, 37, n, false, true, m % 2 == 0, dtype, c_dtype, m % 3});
        }
      }
    }
  }
}

TEST(Gemm, FewRowsOfEveryTail) {
  for (const DType dtype : kDTypes) {
    for (const bool transpose_b : {false, true}) {
      for (std::int64_t size = 1; size <= 70; ++size) {
        expect_ref({1, 1 + size % 8, size, 13, false, transpose_b, false, dtype, DType::f32});
        expect_ref({1, 1 + size % 8, 43, size, false, transpose_b, false, dtype, DType::f32});
      }
    }
  }
}

// Where sums are made in fp32 along the depth, a row's are the same bits among few rows and among many.
TEST(Gemm, FewRowsGiveTheBitsOfManyRows) {
  int compared = 0;
  for (const Isa isa : every_isa()) {
    for (const DType dtype : kDTypes) {
      if (isa == Isa::ref || (dtype == DType::bf16 && isa >= Isa::avx512_bf16)) continue;
      for (const bool transpose_b : {false, true}) {
        const Case many{1, 40, 333, 601, false, transpose_b, false, dtype, DType::f32};
        const Array expected = run(many, isa, 1, true);
        for (const std::int64_t m : {1, 2, 5, 8}) {
          Case few = many;
          few.m = m;
          const Array found = run(few, isa, 2, true);
          for (std::int64_t i = 0; i < m * many.n; ++i)
            ASSERT_EQ(found.at(i), expected.at(i)) << describe(few, isa) << " at " << i;
          ++compared;
        }
      }
    }
  }
  EXPECT_TRUE(compared > 0 || machine_isa() == Isa::ref);
}

TensorView matrix(const Array& x, std::int64_t rows, std::int64_t columns) {
  return TensorView::of_host(x.dtype(), x.data(), {rows, columns}, {columns, 1});
}

// Products of one left operand have the bits that each has alone.
TEST(Gemm, SeveralRightOperands) {
  const std::int64_t k = 128;
  for (const Isa isa : every_isa()) {
    const ScopedIsa cap(isa);
    ThreadPool pool(2);
    for (const DType dtype : kDTypes) {
      for (const std::int64_t m : {1, 2, 7, 40}) {
        for (const bool transpose_a : {false, true}) {
          const Array a = Array::normal(dtype, m * k, 1);
          const TensorView left = transpose_a ? matrix(a, k, m) : matrix(a, m, k);
          std::vector<Array> b, together, alone;
          std::vector<GemmEachArgs::Right> right;
          for (const std::int64_t n : {192, 0, 64, 9}) {
            const auto seed = static_cast<std::uint32_t>(2 + b.size());
            b.push_back(Array::normal(dtype, k * n, seed));
            together.emplace_back(dtype, m * n);
            alone.emplace_back(dtype, m * n);
            right.push_back({matrix(b.back(), k, n), matrix(together.back(), m, n)});
            gemm(pool, {.a = left,
                        .b = right.back().b,
                        .c = matrix(alone.back(), m, n),
                        .transpose_a = transpose_a});
          }
          gemm_each(pool, {.a = left, .right = right, .transpose_a = transpose_a});
          for (std::size_t i = 0; i < b.size(); ++i)
            EXPECT_TRUE(same(together[i], alone[i]))
                << name_of(isa) << " " << name_of(dtype) << " " << m << " " << i;
        }
      }
    }
  }
}

// The numbers are whole, so their sums are exact.
TEST(Gemm, SumOfSeveralPairs) {
  const std::int64_t m = 9, n = 70;
  for (const Isa isa : every_isa()) {
    const ScopedIsa cap(isa);
    ThreadPool pool(2);
    for (const DType dtype : kDTypes) {
      for (const bool transpose_b : {false, true}) {
        std::vector<Array> operands;
        std::vector<GemmSumArgs::Term> terms;
        Array sum(dtype, m * n), expected(DType::f32, m * n);
        operands.reserve(10);
        for (const std::int64_t k : {5, 1, 0, 7, 4}) {
          const auto seed = static_cast<std::uint32_t>(operands.size());
          const Array& a = operands.emplace_back(Array::integers(dtype, m * k, seed));
          const Array& b = operands.emplace_back(Array::integers(dtype, k * n, seed + 1));
          terms.push_back({matrix(a, m, k), transpose_b ? matrix(b, n, k) : matrix(b, k, n)});
          gemm(pool, {.a = terms.back().a,
                      .b = terms.back().b,
                      .c = matrix(expected, m, n),
                      .transpose_b = transpose_b,
                      .accumulate = terms.size() > 1});
        }
        gemm_sum(pool, {.terms = terms, .c = matrix(sum, m, n), .transpose_b = transpose_b});
        for (std::int64_t i = 0; i < sum.size(); ++i)
          ASSERT_EQ(sum.at(i), expected.at(i)) << name_of(isa) << " " << i;
      }
    }
  }
}

TEST(Gemm, EmptyDimsAndBatches) {
  for (const DType dtype : kDTypes) {
    for (const bool accumulate : {false, true}) {
      expect_ref({1, 5, 6, 0, false, false, accumulate, dtype, DType::f32});
      expect_ref({1, 0, 6, 3, false, false, accumulate, dtype, DType::f32});
      expect_ref({1, 5, 0, 3, true, true, accumulate, dtype, DType::bf16});
      expect_ref({0, 5, 6, 3, false, false, accumulate, dtype, DType::f32});
      expect_ref({5, 9, 20, 33, true, false, accumulate, dtype, DType::f32});
    }
  }
}

TEST(Gemm, BlocksLargerThanOneTask) {
  for (const DType dtype : kDTypes) expect_ref({1, 530, 600, 70, false, true, false, dtype, DType::f32});
}

TEST(Gemm, BitIdenticalForAnyNumberOfThreads) {
  for (const DType dtype : kDTypes) {
    const Case cases[] = {{2, 300, 270, 601, false, false, false, dtype, dtype},
                          {2, 3, 2700, 601, false, false, false, dtype, dtype},
                          {2, 2, 2700, 601, false, true, false, dtype, dtype}};
    for (const Case& c : cases) {
      for (const Isa isa : every_isa()) {
        if (isa == Isa::ref) continue;
        const Array one = run(c, isa, 1, true);
        for (const int threads : {2, 5}) EXPECT_TRUE(run(c, isa, threads, true) == one) << describe(c, isa);
      }
    }
  }
}

// Rows that all threads pack together, in two blocks of rows with a tail, against blocks that pack their own.
TEST(Gemm, LargeProductsAreTheSameHoweverRowsArePacked) {
  for (const Isa isa : every_isa()) {
    if (isa < Isa::avx512_bf16) continue;
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        const Case wide{1, 2109, 1030, 70, transpose_a, transpose_b, transpose_b, DType::bf16, DType::f32};
        EXPECT_TRUE(run(wide, isa, 3, true) == run(wide, isa, 1, true)) << describe(wide, isa);
        // All of its steps of depth fit, but not in whole sections.
        const Case deep{1, 896, 1024, 4640, transpose_a, transpose_b, false, DType::bf16, DType::f32};
        EXPECT_TRUE(run(deep, isa, 2, true) == run(deep, isa, 1, true)) << describe(deep, isa);
      }
    }
  }
}

TEST(Gemm, PropagatesNanAndInfinity) {
  ThreadPool pool(1);
  const float inf = std::numeric_limits<float>::infinity();
  for (const Isa isa : every_isa()) {
    const ScopedIsa cap(isa);
    for (const DType dtype : kDTypes) {
      Array a(dtype, 2), b(dtype, 1), c(dtype, 2);
      a.set(1, inf);  // a[0] stays NaN
      b.set(0, 2);
      gemm(pool, {.a = TensorView::of_host(dtype, a.data(), {2, 1}),
                  .b = TensorView::of_host(dtype, b.data(), {1, 1}),
                  .c = TensorView::of_host(dtype, c.data(), {2, 1})});
      EXPECT_TRUE(std::isnan(c.at(0)));
      EXPECT_EQ(c.at(1), inf);
    }
  }
}

TEST(KernelTestData, ComparatorsSeeWhatIsWrong) {
  const Array right = Array::integers(DType::f32, 5, 1, 3);
  Array wrong = right;
  EXPECT_TRUE(same(wrong, right));
  wrong.set(4, right.at(4) + 1);
  EXPECT_FALSE(same(wrong, right));
  EXPECT_FALSE(near(wrong, right, 1e-3f, 1e-3f));
  wrong.set(4, std::numeric_limits<float>::quiet_NaN());
  EXPECT_FALSE(same(wrong, right));
  EXPECT_FALSE(near(wrong, right, 1e-3f, 1e-3f));
  Array outside = right;
  outside.set(5, 1);
  EXPECT_FALSE(same(outside, right));
}

// The rows that a product of `rows` rows on the instruction set ran.
std::vector<std::string> ran(std::int64_t rows, DType dtype, Isa isa) {
  const DispatchRecord record;
  run({1, rows, 40, 64, false, false, false, dtype, dtype}, isa, 1);
  std::vector<std::string> names;
  for (const ListedKernel& k : record.listed()) {
    if (k.op == "gemm" && k.ran) names.emplace_back(k.implementation);
  }
  return names;
}

TEST(Record, NamesTheRowThatRan) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(ran(2, DType::f32, Isa::ref), Names{"ref"});
  if (machine_isa() >= Isa::avx2) {
    EXPECT_EQ(ran(2, DType::f32, Isa::avx2), Names{"few_rows_avx2"});
    EXPECT_EQ(ran(2, DType::bf16, Isa::avx2), Names{"few_rows_avx2"});
    EXPECT_EQ(ran(20, DType::f32, Isa::avx2), Names{"avx2"});
  }
  if (machine_isa() >= Isa::avx512_bf16) {
    EXPECT_EQ(ran(2, DType::bf16, Isa::avx512_bf16), Names{"few_rows_slices"});
    EXPECT_EQ(ran(20, DType::bf16, Isa::avx512_bf16), Names{"avx512_bf16"});
  }
}

TEST(Record, SaysWhyAFasterRowRefused) {
  run({1, 20, 40, 64, false, false, false, DType::f32, DType::f32}, Isa::ref, 1);
  bool found = false;
  for (const KernelChoice& c : kernels_used()) {
    if (c.op != "gemm" || c.implementation != "ref") continue;
    found = true;
    EXPECT_EQ(c.refused.empty(), machine_isa() == Isa::ref) << c.refused;
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace switchyard
