// Which products the kernel for few rows takes, and that it computes them with all that a product may have.
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "kernels/product/cuda/product.h"

namespace switchyard::gpu {
namespace {

template <typename T>
struct alignas(16) Aligned {
  T at[16 / sizeof(T)];
};

// Small whole numbers, at an address that is a multiple of 16.
template <typename T>
class Numbers {
 public:
  Numbers(std::int64_t count, std::uint32_t seed)
      : blocks_(static_cast<std::size_t>(count) * sizeof(T) / 16 + 1) {
    std::mt19937 random(seed);
    for (std::int64_t i = 0; i < count; ++i) data()[i] = T(static_cast<float>(random() % 7) - 3);
  }
  T* data() { return blocks_[0].at; }
  float at(std::int64_t i) const { return static_cast<float>(blocks_[0].at[i]); }

 private:
  std::vector<Aligned<T>> blocks_;
};

template <typename T>
constexpr DType kTypeOf = dtype_of<T>::value;

// Rows of one matrix after the other, or in groups, with bias and something to add to.
template <typename T, typename C>
void expect_products(const std::vector<std::int32_t>& sizes, bool grouped, bool lookup) {
  constexpr std::int64_t kDepth = 96, kColumns = 37, kPitch = 40;
  const std::int64_t batch = std::ssize(sizes),
                     rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  Numbers<T> a(rows * kDepth, 1), b(batch * kDepth * kPitch, 2), bias(batch * kColumns, 3);
  Numbers<C> c(rows * kPitch, 4);
  const Numbers<C> before = c;
  std::vector<std::int32_t> index(static_cast<std::size_t>(rows));
  std::iota(index.rbegin(), index.rend(), 0);
  DeviceProduct p{.dtype = kTypeOf<T>,
                  .c_dtype = kTypeOf<C>,
                  .m = grouped ? rows : sizes[0],
                  .n = kColumns,
                  .terms = {{.a = a.data(),
                             .a_rows = lookup ? index.data() : nullptr,
                             .b = b.data(),
                             .k = kDepth,
                             .lda = kDepth,
                             .ldb = kPitch}},
                  .ldc = kPitch,
                  .c = c.data(),
                  .bias = grouped ? bias.data() : nullptr,
                  .accumulate = true,
                  .groups = grouped ? Groups::rows : Groups::none,
                  .batch = batch,
                  .b_stride = kDepth * kPitch,
                  .bias_stride = kColumns,
                  .group_sizes = sizes.data()};
  if (!grouped) p.a_stride = sizes[0] * kDepth, p.c_stride = sizes[0] * kPitch;
  ASSERT_EQ(few_rows_refuses(alone(p)), nullptr);
  few_rows_product(alone(p));
  std::int64_t row = 0;
  for (std::int64_t g = 0; g < batch; ++g) {
    for (std::int32_t i = 0; i < sizes[static_cast<std::size_t>(g)]; ++i, ++row) {
      const std::int64_t from = lookup ? index[static_cast<std::size_t>(row)] : row;
      for (std::int64_t n = 0; n < kPitch; ++n) {
        float expected = before.at(row * kPitch + n);
        for (std::int64_t k = 0; n < kColumns && k < kDepth; ++k)
          expected += a.at(from * kDepth + k) * b.at((g * kDepth + k) * kPitch + n);
        if (grouped && n < kColumns) expected += bias.at(g * kColumns + n);
        ASSERT_EQ(c.at(row * kPitch + n), static_cast<float>(C(expected))) << row << " " << n;
      }
    }
  }
}

TEST(FewRows, AreMultipliedWithAllThatAProductMayHave) {
  for (const std::int32_t rows : {1, 5, 8}) {
    expect_products<float, float>({rows, rows}, false, false);
    expect_products<bfloat16, float>({rows}, false, false);
    expect_products<bfloat16, bfloat16>({rows, rows, rows}, false, false);
  }
  for (const bool lookup : {false, true}) {
    expect_products<float, float>({0, 9, 1, 0, 2}, true, lookup);
    expect_products<bfloat16, bfloat16>({3, 0, 0, 8, 1}, true, lookup);
    expect_products<bfloat16, float>({0, 1, 0, 0, 0, 0, 0, 1, 0}, true, lookup);  // a row a group
  }
}

TEST(FewRows, OthersAreLeftToTensorCores) {
  Numbers<bfloat16> a(4096, 1), b(4096, 2), c(4096, 3);
  const DeviceProduct few{.dtype = DType::bf16,
                          .c_dtype = DType::bf16,
                          .m = 8,
                          .n = 32,
                          .terms = {{.a = a.data(), .b = b.data(), .k = 64, .lda = 64, .ldb = 32}},
                          .ldc = 32,
                          .c = c.data()};
  EXPECT_EQ(few_rows_refuses(alone(few)), nullptr);
  const auto refused = [&](const auto& change) {
    DeviceProduct other = few;
    change(other);
    return few_rows_refuses(alone(other)) != nullptr;
  };
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.m = 9; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.terms[0].k = 40; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.transpose_a = true; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.transpose_b = true; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.term_count = 2; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.groups = Groups::depth; }));
  EXPECT_TRUE(refused([](DeviceProduct& p) { p.terms[0].lda = 66; }));
  EXPECT_TRUE(refused([&](DeviceProduct& p) { p.terms[0].a = a.data() + 1; }));
}

}  // namespace
}  // namespace switchyard::gpu
