// Packed weights: packing and unpacking give the reference's bits; products of numbers and scales whose sums
// are exact in float32, in any order, give its values.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <span>

#include "core/half.h"
#include "kernels/packed/packed_block.h"
#include "kernels/packed/packed_weights.h"
#include "kernels/product/gemm.h"
#include "kernels/product/grouped_matmul.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

constexpr std::uint32_t kSeedStep = 16;

// A weight of packed blocks, in words of four bytes.
struct Blocks {
  DType packed;
  std::int64_t rows, columns;  // of blocks

  Shape shape() const { return {rows, columns}; }
  Shape dense_shape() const { return unpacked_shape(packed, shape()); }
  std::int64_t values() const { return num_elements(dense_shape()); }
  std::int64_t words() const { return rows * columns * static_cast<std::int64_t>(size_of(packed)) / 4; }
  TensorView view(const PoisonedArray& x) const { return x.view().as(packed, 0, shape()); }
};

// Random numbers with scales of 1/2, 1 and 2 (times -3 .. 3 in K-quants), which sums of products with
// integers below 4 keep exact.
PoisonedArray exact_blocks(const Blocks& blocks, std::uint32_t seed) {
  std::mt19937 random(seed);
  const DType packed = blocks.packed;
  const PackedFormat& range = packed_format(packed);
  PoisonedArray words(DType::i32, blocks.words());
  auto* block = static_cast<std::byte*>(words.data());
  for (std::int64_t b = 0; b < blocks.rows * blocks.columns; ++b, block += size_of(packed)) {
    for (std::int64_t output = 0; output < kBlockOutputs; ++output) {
      PackedGroup group;
      const auto power = static_cast<int>(random() % 3) - 1;
      const float scale = std::ldexp(1.0f, power);
      group.scale = packed == DType::packed_mxfp4 ? static_cast<std::uint32_t>(127 + power)
                    : packed == DType::packed_fp8 ? std::bit_cast<std::uint32_t>(scale)
                                                  : float_to_half(scale);
      if (has_offset(packed)) group.offset = float_to_half(static_cast<float>(random() % 5) - 2.0f);
      for (std::int64_t g = 0; g < groups_of(packed); ++g) {
        for (auto& number : group.numbers)
          number =
              static_cast<std::int8_t>(range.least_number + static_cast<int>(random() % 256) % range.numbers);
        if (is_k_quant(packed)) {
          for (auto& factor : group.scale_factors) {
            const auto three = static_cast<std::int16_t>(1 + random() % 3);
            factor =
                packed == DType::packed_q6_k && random() % 2 == 0 ? static_cast<std::int16_t>(-three) : three;
          }
          group.offset_factor = static_cast<std::uint8_t>(random() % 4);
        }
        write_group(packed, group, block, output, g);
      }
    }
  }
  return words;
}

std::string described(const Blocks& blocks, std::uint32_t seed) {
  return fmt::format("{} {}, seed {}", name_of(blocks.packed), to_string(blocks.dense_shape()), seed);
}

// body(blocks, dtype, seed) of every one of the types and some shapes.
template <typename Body>
std::vector<Case> cases_of(std::span<const DType> types, std::uint32_t seed, const Body& body) {
  std::vector<Case> cases;
  for (const DType packed : types) {
    for (const DType dtype : kFloatTypes) {
      for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 5}, {8, 40}})
        body(Blocks{packed, rows, columns}, dtype, seed += kSeedStep, cases);
    }
  }
  return cases;
}

std::vector<Case> pack_cases(std::uint32_t first) {
  return cases_of(
      packed_types(true), first,
      [](const Blocks& blocks, DType dtype, std::uint32_t seed, std::vector<Case>& cases) {
        // Also values whose scales are no normal float16, and values that are no normal float32.
        for (const float deviation : {0.05f, 2e-5f, 1e-39f})
          cases.push_back({dtype,
                           fmt::format("{}, deviation {:g}", described(blocks, seed), deviation),
                           {PoisonedArray::normal(dtype, blocks.values(), seed, deviation)},
                           {{"blocks", PoisonedArray(DType::i32, blocks.words())}},
                           [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                             pack_weights(pool, {in[0].view(blocks.dense_shape()), blocks.view(out[0])});
                           }});
      });
}

std::vector<Case> unpack_cases(std::uint32_t first) {
  return cases_of(
      packed_types(), first,
      [](const Blocks& blocks, DType dtype, std::uint32_t seed, std::vector<Case>& cases) {
        cases.push_back({dtype,
                         described(blocks, seed),
                         {exact_blocks(blocks, seed)},
                         {{"values", PoisonedArray(dtype, blocks.values())}},
                         [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                           unpack_weights(pool, {blocks.view(in[0]), out[0].view(blocks.dense_shape())});
                         }});
      });
}

enum class Rows : std::uint8_t { few, many, integers };

// Products as the op takes them that is under test.
template <Rows rows>
std::vector<Case> product_cases(std::uint32_t first) {
  return cases_of(
      packed_types(), first,
      [](const Blocks& blocks, DType dtype, std::uint32_t seed, std::vector<Case>& cases) {
        const bool integers = dtype == DType::bf16 && blocks.packed != DType::packed_fp8;
        if (integers != (rows == Rows::integers)) return;
        for (const std::int64_t m : rows == Rows::few    ? std::array<std::int64_t, 4>{1, 2, 5, 16}
                                    : rows == Rows::many ? std::array<std::int64_t, 4>{33, 64, 70, 300}
                                                         : std::array<std::int64_t, 4>{1, 7, 31, 64}) {
          const std::int64_t k = blocks.rows * block_inputs(blocks.packed),
                             n = blocks.columns * kBlockOutputs;
          cases.push_back(
              {dtype,
               fmt::format("{} rows times {}", m, described(blocks, seed)),
               {PoisonedArray::integers(dtype, m * k, seed), exact_blocks(blocks, seed + 1)},
               {{"c", PoisonedArray(DType::f32, m * n)}},
               [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                 gemm(pool, {.a = in[0].view({m, k}), .b = blocks.view(in[1]), .c = out[0].view({m, n})});
               }});
        }
      });
}

// Products with the blocks transposed, as the gradient for a product's left operand.
std::vector<Case> transposed_cases(std::uint32_t first) {
  return cases_of(
      packed_types(), first,
      [](const Blocks& blocks, DType dtype, std::uint32_t seed, std::vector<Case>& cases) {
        for (const std::int64_t m : {1, 7, 70}) {
          const std::int64_t k = blocks.rows * block_inputs(blocks.packed),
                             n = blocks.columns * kBlockOutputs;
          cases.push_back({dtype,
                           fmt::format("{} rows times transposed {}", m, described(blocks, seed)),
                           {PoisonedArray::integers(dtype, m * n, seed), exact_blocks(blocks, seed + 1)},
                           {{"c", PoisonedArray(DType::f32, m * k)}},
                           [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                             gemm(pool, {.a = in[0].view({m, n}),
                                         .b = blocks.view(in[1]),
                                         .c = out[0].view({m, k}),
                                         .transpose_b = true});
                           }});
        }
      });
}

// The gradient for the left operand of one product, or the sum of those of two.
template <bool pair>
std::vector<Case> gradient_cases(std::uint32_t first) {
  return cases_of(
      packed_types(), first,
      [](const Blocks& blocks, DType dtype, std::uint32_t seed, std::vector<Case>& cases) {
        const std::vector<std::int32_t> sizes = {40, 0, 3};
        const std::int64_t groups = std::ssize(sizes), k = blocks.rows * block_inputs(blocks.packed),
                           n = blocks.columns * kBlockOutputs, rows = 43;
        const Blocks all{blocks.packed, groups * blocks.rows, blocks.columns};
        const auto weights = [=](const PoisonedArray& x) {
          return all.view(x).reshaped({groups, blocks.rows, blocks.columns});
        };
        cases.push_back(
            {dtype,
             fmt::format("{} rows in {} groups, {}", rows, groups, described(blocks, seed)),
             {PoisonedArray::integers(dtype, rows * n, seed), i32_array(sizes), exact_blocks(all, seed + 1),
              PoisonedArray::integers(dtype, rows * n, seed + 2), exact_blocks(all, seed + 3)},
             {{"dlhs", PoisonedArray(dtype, rows * k)}},
             [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
               const TensorView dlhs = out[0].view({rows, k});
               if (pair)
                 gmm_dlhs_pair(pool, {in[0].view({rows, n}), in[3].view({rows, n}), weights(in[2]),
                                      weights(in[4]), in[1].view(), dlhs});
               else
                 gmm_dlhs(pool, {in[0].view({rows, n}), weights(in[2]), in[1].view(), dlhs});
             }});
      });
}

Case grouped_product_case(const Blocks& blocks, DType dtype, std::uint32_t seed,
                          const std::vector<std::int32_t>& sizes, bool pair) {
  const std::int64_t groups = std::ssize(sizes), k = blocks.rows * block_inputs(blocks.packed),
                     n = blocks.columns * kBlockOutputs,
                     rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  const Blocks all{blocks.packed, groups * blocks.rows, blocks.columns};
  const auto weights = [=](const PoisonedArray& x) {
    return all.view(x).reshaped({groups, blocks.rows, blocks.columns});
  };
  Case c{dtype,
         fmt::format("{} rows in {} groups times {}", rows, groups, described(blocks, seed)),
         {PoisonedArray::integers(dtype, rows * k, seed), i32_array(sizes), exact_blocks(all, seed + 1)},
         {{"out", PoisonedArray(dtype, rows * n)}},
         [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
           gmm(pool, {.lhs = in[0].view({rows, k}),
                      .rhs = weights(in[2]),
                      .bias = {},
                      .group_sizes = in[1].view(),
                      .out = out[0].view({rows, n})});
         }};
  if (!pair) return c;
  // Rows in turned order, looked up.
  std::vector<std::int32_t> index(static_cast<std::size_t>(rows));
  std::iota(index.rbegin(), index.rend(), 0);
  c.inputs.push_back(exact_blocks(all, seed + 2));
  c.inputs.push_back(i32_array(index));
  c.outputs.push_back({"out_1", PoisonedArray(dtype, rows * n)});
  c.run = [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
    gmm_pair(pool, {.x = in[0].view({rows, k}),
                    .index = in[4].view(),
                    .rhs_0 = weights(in[2]),
                    .rhs_1 = weights(in[3]),
                    .group_sizes = in[1].view(),
                    .out_0 = out[0].view({rows, n}),
                    .out_1 = out[1].view({rows, n}),
                    .row_weights = {},
                    .hidden = {}});
  };
  return c;
}

// Rows in groups: many in two of three, few, and at most one in each.
template <bool pair, bool integers>
std::vector<Case> grouped_product_cases(std::uint32_t first) {
  const std::vector<std::int32_t> sizes_of[] = {
      {40, 0, 70}, {2, 0, 3}, {0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0}};
  return cases_of(packed_types(), first,
                  [&](const Blocks& blocks, DType dtype, std::uint32_t seed, std::vector<Case>& cases) {
                    if ((dtype == DType::bf16 && blocks.packed != DType::packed_fp8) != integers) return;
                    for (const std::vector<std::int32_t>& sizes : sizes_of)
                      cases.push_back(grouped_product_case(blocks, dtype, seed, sizes, pair));
                  });
}

}  // namespace

std::vector<KernelCases> packed_weight_kernels() {
  return {{"pack_weights", "pack_weights", pack_cases},
          {"unpack_weights", "unpack_weights", unpack_cases},
          {"gemm of packed weights", "product", product_cases<Rows::many>},
          {"gemm_few_rows of packed weights", "product", product_cases<Rows::few>},
          {"gmm of packed weights", "product", grouped_product_cases<false, false>},
          {"gmm_pair of packed weights", "product", grouped_product_cases<true, false>},
          {"gemm of transposed packed weights", "product", transposed_cases},
          {"gmm_dlhs of packed weights", "product", gradient_cases<false>},
          {"gmm_dlhs_pair of packed weights", "product", gradient_cases<true>},
          {"gemm_integers", "product", product_cases<Rows::integers>},
          {"gmm_integers", "product", grouped_product_cases<false, true>},
          {"gmm_pair_integers", "product", grouped_product_cases<true, true>}};
}

}  // namespace switchyard::selftest
