// Products of one a that a kernel makes in one launch have the bits that each has alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <random>

#include "core/tensor.h"
#include "kernels/packed/packed_block.h"
#include "kernels/product/cuda/few_rows_wgmma.h"
#include "kernels/product/cuda/product.h"
#include "kernels/product/cuda/split_product.h"

namespace switchyard::gpu::product_lists {
namespace {

using Run = std::function<void(DeviceProducts)>;

struct Form {
  std::int64_t m, k;
  DType dtype = DType::bf16, c_dtype = DType::bf16;
  DType weights = DType::bf16;  // or packed
  bool transpose_a = false, transpose_b = false, bias = false;

  std::string text() const {
    return fmt::format("{} x {} of {} with {}, into {}{}{}{}", m, k, name_of(dtype), name_of(weights),
                       name_of(c_dtype), transpose_a ? ", A transposed" : "",
                       transpose_b ? ", B transposed" : "", bias ? ", bias" : "");
  }
};

// Products of one a with so many columns each; between rows of C there is poison, of another width each.
class Products {
 public:
  Products(const Form& form, const std::vector<std::int64_t>& columns) {
    const bool packed = is_packed(form.weights);
    const auto& a = numbers(form.dtype, form.m * form.k, 1);
    std::uint32_t seed = 2;
    std::int64_t gap = 0;
    for (const std::int64_t n : columns) {
      const auto& b = packed ? blocks(form.weights, form.k, n, seed++)
                             : numbers(form.dtype, form.k * std::max<std::int64_t>(n, 8), seed++);
      const auto& bias = numbers(form.dtype, n, seed++);
      auto& c = memory_.emplace_back(static_cast<std::size_t>(form.m * (n + gap)) * size_of(form.c_dtype),
                                     std::byte{0xff});
      DeviceProduct p{.dtype = form.dtype,
                      .c_dtype = form.c_dtype,
                      .weight_dtype = form.weights,
                      .m = form.m,
                      .n = n,
                      .terms = {{.a = a.data(),
                                 .b = b.data(),
                                 .k = form.k,
                                 .lda = form.transpose_a ? form.m : form.k,
                                 .ldb = packed             ? n / kBlockOutputs
                                        : form.transpose_b ? form.k
                                                           : std::max<std::int64_t>(n, 8)}},
                      .transpose_a = form.transpose_a,
                      .transpose_b = form.transpose_b,
                      .ldc = n + gap,
                      .c = c.data(),
                      .bias = form.bias ? bias.data() : nullptr};
      args_.push_back(p);
      gap += 4;
    }
  }
  DeviceProducts args() const { return {args_.data(), args_.size()}; }

  // Poisons all C, runs, and returns what each has become.
  std::vector<std::vector<std::byte>> of(const Run& run, bool together) {
    for (const DeviceProduct& one : args_) std::ranges::fill(result(one), std::byte{0xff});
    if (together) {
      run(args());
    } else {
      for (const DeviceProduct& one : args_) run(alone(one));
    }
    std::vector<std::vector<std::byte>> all;
    for (const DeviceProduct& one : args_) all.push_back(result(one));
    return all;
  }

 private:
  std::vector<std::byte>& result(const DeviceProduct& of) {
    return *std::ranges::find_if(memory_, [&](const auto& bytes) { return bytes.data() == of.c; });
  }
  // Whole numbers.
  const std::vector<std::byte>& numbers(DType dtype, std::int64_t count, std::uint32_t seed) {
    std::mt19937 random(seed);
    auto& bytes = memory_.emplace_back(static_cast<std::size_t>(count) * size_of(dtype));
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(random() % 9) - 4.0f;
      const bfloat16 narrow(value);
      std::memcpy(bytes.data() + static_cast<std::size_t>(i) * size_of(dtype),
                  dtype == DType::f32 ? static_cast<const void*>(&value) : &narrow, size_of(dtype));
    }
    return bytes;
  }
  // Blocks whose scales are finite and positive.
  const std::vector<std::byte>& blocks(DType packed, std::int64_t k, std::int64_t n, std::uint32_t seed) {
    std::mt19937 random(seed);
    auto& bytes = memory_.emplace_back(
        static_cast<std::size_t>(k / block_inputs(packed) * n / kBlockOutputs) * size_of(packed));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 60);
    return bytes;
  }

  std::deque<std::vector<std::byte>> memory_;
  std::vector<DeviceProduct> args_;
};

void expect_those_alone(const Form& form, const std::vector<std::int64_t>& columns, const Run& run) {
  SCOPED_TRACE(form.text());
  Products products(form, columns);
  const auto alone = products.of(run, false), together = products.of(run, true);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(together[i], alone[i]) << "product " << i;
    const bool any = std::ranges::any_of(alone[i], [](std::byte x) { return x != std::byte{0xff}; });
    EXPECT_EQ(any, columns[i] > 0) << "product " << i;
  }
}

// One of them has no column, and others have less than a tile.
const std::vector<std::int64_t> kColumns{264, 0, 40, 136};

TEST(ProductLists, OfTilesHaveTheBitsOfEachAlone) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const DType c_dtype : {DType::bf16, DType::f32}) {
        const Form form{.m = 328,
                        .k = 136,
                        .c_dtype = c_dtype,
                        .transpose_a = transpose_a,
                        .transpose_b = transpose_b,
                        .bias = transpose_a};
        expect_those_alone(form, kColumns, tma_product);
        for (const int parts : {1, 4})
          expect_those_alone(form, kColumns, [=](DeviceProducts args) { split_product_in(parts, args); });
      }
    }
  }
}

TEST(ProductLists, OfFewRowsHaveTheBitsOfEachAlone) {
  for (const std::int64_t m : {1, 3, 17, 64}) {
    for (const DType c_dtype : {DType::bf16, DType::f32}) {
      for (const bool transpose_b : {false, true}) {
        const Form form{.m = m, .k = 264, .c_dtype = c_dtype, .transpose_b = transpose_b, .bias = m == 17};
        for (const int parts : {1, 4})
          expect_those_alone(form, kColumns, [=](DeviceProducts args) { few_rows_wgmma_in(parts, args); });
      }
      for (const DType dtype : {DType::bf16, DType::f32})
        expect_those_alone({.m = m, .k = 96, .dtype = dtype, .c_dtype = c_dtype, .bias = m == 3}, kColumns,
                           few_rows_product);
    }
    for (const DType packed : {DType::packed_int4, DType::packed_q6_k}) {
      const Form form{.m = m, .k = 512, .weights = packed};
      expect_those_alone(form, {48, 0, 16, 144}, few_rows_product);
      if (m > 1) expect_those_alone(form, {48, 0, 16, 144}, few_rows_packed_product);
    }
  }
}

TEST(ProductLists, AreRefusedForOneThatIs) {
  Products products({.m = 512, .k = 1024}, {256, 64});
  std::vector<DeviceProduct> args(products.args().begin(), products.args().end());
  const DeviceProducts all(args.data(), args.size());
  EXPECT_EQ(split_refuses(all), nullptr);
  args[1].terms[0].ldb += 4;
  EXPECT_STREQ(split_refuses(all), "operands are not aligned to 16 bytes");
  EXPECT_STREQ(tma_refuses(all), "operands are not aligned to 16 bytes");
  EXPECT_STREQ(few_rows_wgmma_refuses(all), "it has more than 64 rows");
}

TEST(ProductLists, SplitTheDepthByTheTilesOfAll) {
  const DeviceProduct p{.m = 512, .n = 512};
  const std::vector<DeviceProduct> two(2, DeviceProduct{p}), three(3, DeviceProduct{p});
  EXPECT_EQ(depth_parts_of({two.data(), 2}), 4);
  EXPECT_EQ(depth_parts_of({three.data(), 3}), 2);
}

}  // namespace
}  // namespace switchyard::gpu::product_lists
