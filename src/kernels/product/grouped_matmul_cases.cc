// Grouped products of fractions that are exact in fp32 in any order: no tolerance, but for the activation.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <span>

#include "kernels/product/gated_down.h"
#include "kernels/product/grouped_matmul.h"
#include "kernels/testing/cases.h"
#include "kernels/testing/exact_operands.h"

namespace switchyard::selftest {
namespace {

using Groups = std::vector<std::int64_t>;

// The shape of one case of any of the grouped products.
struct GroupedShape {
  Groups groups;
  std::int64_t k, n;
  DType dtype;
  std::uint32_t seed;

  std::int64_t rows() const { return std::accumulate(groups.begin(), groups.end(), std::int64_t{0}); }
  Shape of_k() const { return {rows(), k}; }
  Shape of_n() const { return {rows(), n}; }
  Shape of_weights() const { return {static_cast<std::int64_t>(groups.size()), k, n}; }
  // group_sizes, the last input of each case.
  PoisonedArray sizes() const {
    const std::vector<std::int32_t> narrow(groups.begin(), groups.end());
    return i32_array(narrow);
  }
  std::int64_t weights() const { return static_cast<std::int64_t>(groups.size()) * k * n; }
  std::string text() const {
    return fmt::format("groups of {{{}}} rows, k {}, n {}, seed {}", fmt::join(groups, ", "), k, n, seed);
  }
};

// Large ones: several blocks of rows; a depth of several sections (gemm_tiles.cc); and, which only kernels of
// tiles have, a result stored past the caches (gemm_tiles_store.h) and a depth of several passes.
struct LargeShape {
  Groups groups;
  std::int64_t k, n;
  bool bf16_only = false;
};
const LargeShape kLarge[] = {
    {{3, 700, 0, 2}, 40, 24}, {{0, 70, 5}, 2500, 40}, {{2100}, 33, 1024, true}, {{2040}, 4200, 170, true}};
const LargeShape kLargePair[] = {
    {{3, 700, 0, 2}, 40, 24}, {{0, 70, 5}, 2500, 40}, {{2100}, 33, 1024, true}, {{2040}, 4200, 40, true}};
const LargeShape kLargeDlhs[] = {
    {{3, 700, 0, 2}, 40, 24}, {{0, 70, 5}, 40, 2500}, {{2100}, 1024, 33, true}, {{2040}, 17, 4200, true}};
const LargeShape kLargeDrhs[] = {
    {{3, 700, 0, 2}, 40, 24}, {{0, 2500, 5}, 70, 40}, {{33}, 2100, 1024, true}, {{4200}, 2040, 17, true}};

// make(shape, variant) for small shapes in all variants from 0 on, and for the large ones in the last.
template <typename MakeCase>
std::vector<Case> grouped_cases(std::uint32_t seed, int variants, std::span<const LargeShape> large,
                                const MakeCase& make) {
  // Nothing, empty groups, one that takes all, single rows, few and many rows.
  const Groups groupings[] = {{0}, {0, 0, 0}, {0, 0, 41, 0}, {1, 1, 1, 1}, {33, 0, 1, 31, 65, 8}};
  const std::pair<std::int64_t, std::int64_t> sizes[] = {{1, 1},    {16, 32}, {35, 37},
                                                         {129, 65}, {64, 0},  {0, 5}};
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    const auto shape_of = [&](const Groups& groups, std::int64_t k, std::int64_t n) {
      return GroupedShape{groups, k, n, dtype, seed += kSeedsOfCase};
    };
    for (const Groups& groups : groupings) {
      for (const auto& [k, n] : sizes) {
        for (int variant = 0; variant < variants; ++variant)
          cases.push_back(make(shape_of(groups, k, n), variant));
      }
    }
    for (const LargeShape& s : large) {
      if (dtype == DType::bf16 || !s.bf16_only)
        cases.push_back(make(shape_of(s.groups, s.k, s.n), variants - 1));
    }
  }
  return cases;
}

std::vector<Case> gmm_cases(std::uint32_t seed) {
  return grouped_cases(seed, 2, kLarge, [](const GroupedShape& s, int variant) {
    const bool biased = variant == 0;
    ExactOperands draw(s.dtype, s.seed);
    return Case{s.dtype,
                s.text() + (biased ? ", with bias" : ""),
                {draw.left(s.rows() * s.k), draw.right(s.weights()),
                 draw.addend(s.dtype, static_cast<std::int64_t>(s.groups.size()) * s.n), s.sizes()},
                {{"out", PoisonedArray(s.dtype, s.rows() * s.n)}},
                [s, biased](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  gmm(pool, {.lhs = in[0].view(s.of_k()),
                             .rhs = in[1].view(s.of_weights()),
                             .bias = biased ? in[2].view({s.of_weights()[0], s.n}) : TensorView(),
                             .group_sizes = in[3].view(),
                             .out = out[0].view(s.of_n())});
                }};
  });
}

std::vector<Case> gmm_dlhs_cases(std::uint32_t seed) {
  return grouped_cases(seed, 1, kLargeDlhs, [](const GroupedShape& s, int) {
    ExactOperands draw(s.dtype, s.seed);
    return Case{s.dtype,
                s.text(),
                {draw.left(s.rows() * s.n), draw.right(s.weights()), s.sizes()},
                {{"dlhs", PoisonedArray(s.dtype, s.rows() * s.k)}},
                [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  gmm_dlhs(pool, {in[0].view(s.of_n()), in[1].view(s.of_weights()), in[2].view(),
                                  out[0].view(s.of_k())});
                }};
  });
}

std::vector<Case> gmm_drhs_cases(std::uint32_t seed) {
  return grouped_cases(seed, 2, kLargeDrhs, [](const GroupedShape& s, int variant) {
    const DType drhs_dtype = kFloatTypes[variant];
    ExactOperands draw(s.dtype, s.seed);
    return Case{s.dtype,
                fmt::format("{}, into {}", s.text(), name_of(drhs_dtype)),
                {draw.left(s.rows() * s.k), draw.right(s.rows() * s.n), s.sizes()},
                {{"drhs", PoisonedArray(drhs_dtype, s.weights())}},
                [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  gmm_drhs(pool, {in[0].view(s.of_k()), in[1].view(s.of_n()), in[2].view(),
                                  out[0].view(s.of_weights())});
                }};
  });
}

// Rows of x [stored, k]: `gathered` rows repeat and are in no order, others follow the order of x.
struct PairRows {
  PairRows(const GroupedShape& s, bool gathered) : stored(gathered ? s.rows() / 2 + 1 : s.rows()) {
    for (std::int64_t r = 0; gathered && r < s.rows(); ++r)
      index.push_back(static_cast<std::int32_t>(r * 7 % stored));
  }
  std::int64_t stored;
  std::vector<std::int32_t> index;
};

// Without the activation, with it, with it weighted alone, and with it weighted beside both products.
constexpr int kPairVariants = 4;
Case pair_case(const GroupedShape& s, int variant) {
  const bool gathered = variant != 1, activated = variant > 0, weighted = variant >= 2, alone = variant == 2;
  ExactOperands draw(s.dtype, s.seed);
  const PairRows rows(s, gathered);
  const PoisonedArray out(s.dtype, s.rows() * s.n);
  Case c{s.dtype,
         fmt::format("{}{}{}{}", s.text(), gathered ? ", rows gathered" : "",
                     activated ? ", with the activation" : "",
                     alone      ? ", weighted, alone"
                     : weighted ? ", weighted"
                                : ""),
         {draw.left(rows.stored * s.k), draw.right(s.weights()), draw.right(s.weights()),
          draw.addend(DType::f32, s.rows()), i32_array(rows.index), s.sizes()},
         {},
         [=](ThreadPool& pool, const Arrays& in, Arrays& o) {
           gmm_pair(pool, {.x = in[0].view({rows.stored, s.k}),
                           .index = gathered ? in[4].view() : TensorView(),
                           .rhs_0 = in[1].view(s.of_weights()),
                           .rhs_1 = in[2].view(s.of_weights()),
                           .group_sizes = in[5].view(),
                           .out_0 = alone ? TensorView() : o[0].view(s.of_n()),
                           .out_1 = alone ? TensorView() : o[1].view(s.of_n()),
                           .row_weights = weighted ? in[3].view() : TensorView(),
                           .hidden = activated ? o.back().view(s.of_n()) : TensorView()});
         }};
  if (!alone) c.outputs = {{"out_0", out}, {"out_1", out}};
  if (activated) c.outputs.push_back({"hidden", out, activation_bound(s.dtype)});
  return c;
}

std::vector<Case> gmm_pair_cases(std::uint32_t seed) {
  return grouped_cases(seed, kPairVariants, kLargePair, pair_case);
}

// On Hopper the first is one product.
std::vector<Case> gated_product_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const Groups& groups : {Groups{300, 0, 257}, Groups{1, 0, 70}}) {
    for (int variant = 0; variant < kPairVariants; ++variant)
      cases.push_back(pair_case({groups, 72, 264, DType::bf16, seed += kSeedsOfCase}, variant));
  }
  return cases;
}

std::vector<Case> gmm_dlhs_pair_cases(std::uint32_t seed) {
  return grouped_cases(seed, 1, kLargeDlhs, [](const GroupedShape& s, int) {
    ExactOperands draw(s.dtype, s.seed);
    return Case{s.dtype,
                s.text(),
                {draw.left(s.rows() * s.n), draw.left(s.rows() * s.n), draw.right(s.weights()),
                 draw.right(s.weights()), s.sizes()},
                {{"dlhs", PoisonedArray(s.dtype, s.rows() * s.k)}},
                [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  gmm_dlhs_pair(pool, {in[0].view(s.of_n()), in[1].view(s.of_n()), in[2].view(s.of_weights()),
                                       in[3].view(s.of_weights()), in[4].view(), out[0].view(s.of_k())});
                }};
  });
}

std::vector<Case> gmm_drhs_pair_cases(std::uint32_t seed) {
  return grouped_cases(seed, 2, kLargeDrhs, [](const GroupedShape& s, int variant) {
    const bool gathered = variant == 1;
    const DType drhs_dtype = gathered ? DType::f32 : DType::bf16;
    ExactOperands draw(s.dtype, s.seed);
    const PairRows rows(s, gathered);
    const PoisonedArray drhs(drhs_dtype, s.weights());
    return Case{
        s.dtype,
        fmt::format("{}{}, into {}", s.text(), gathered ? ", rows gathered" : "", name_of(drhs_dtype)),
        {draw.left(rows.stored * s.k), draw.right(s.rows() * s.n), draw.right(s.rows() * s.n),
         i32_array(rows.index), s.sizes()},
        {{"drhs_0", drhs}, {"drhs_1", drhs}},
        [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
          gmm_drhs_pair(pool, {.x = in[0].view({rows.stored, s.k}),
                               .index = gathered ? in[3].view() : TensorView(),
                               .dy_0 = in[1].view(s.of_n()),
                               .dy_1 = in[2].view(s.of_n()),
                               .group_sizes = in[4].view(),
                               .drhs_0 = out[0].view(s.of_weights()),
                               .drhs_1 = out[1].view(s.of_weights())});
        }};
  });
}

// k: the columns of dy.
std::vector<Case> gated_down_backward_cases(std::uint32_t seed) {
  const LargeShape large[] = {{{3, 700, 0, 2}, 40, 24}, {{300, 0, 257}, 72, 328, true}};  // one on Hopper
  return grouped_cases(seed, 1, large, [](const GroupedShape& s, int) {
    ExactOperands draw(s.dtype, s.seed);
    Draw normal(s.seed + kSeedsOfCase / 2);
    const Bound bound = activation_bound(s.dtype);
    const PoisonedArray out(s.dtype, s.rows() * s.n);
    return Case{s.dtype,
                s.text(),
                {draw.left(s.rows() * s.k), draw.right(s.weights()), normal.normal(s.dtype, s.rows() * s.n),
                 normal.normal(s.dtype, s.rows() * s.n), normal.normal(DType::f32, s.rows()), s.sizes()},
                {{"dgate", out, {bound.relative, 1e-4}},
                 {"dup", out, bound},
                 {"hidden", out, bound},
                 // Sums over the columns, in another order.
                 {"drow_weights", PoisonedArray(DType::f32, s.rows()), {1e-4, 1e-3}}},
                [s](ThreadPool& pool, const Arrays& in, Arrays& o) {
                  const Shape of_weights{static_cast<std::int64_t>(s.groups.size()), s.n, s.k};
                  gated_down_backward(pool, {.dy = in[0].view(s.of_k()),
                                             .wo = in[1].view(of_weights),
                                             .group_sizes = in[5].view(),
                                             .gate = in[2].view(s.of_n()),
                                             .up = in[3].view(s.of_n()),
                                             .row_weights = in[4].view(),
                                             .dgate = o[0].view(s.of_n()),
                                             .dup = o[1].view(s.of_n()),
                                             .hidden = o[2].view(s.of_n()),
                                             .drow_weights = o[3].view()});
                }};
  });
}

// Products with a low-rank part, of which several groups share a right operand where their number is even.
struct LowShape {
  explicit LowShape(const GroupedShape& s)
      : groups(static_cast<std::int64_t>(s.groups.size())), parts(groups % 2 == 0 ? 2 : 1) {}
  static constexpr std::int64_t kRank = 5;
  std::int64_t groups, parts;
};

std::vector<Case> gmm_low_cases(std::uint32_t seed) {
  return grouped_cases(seed, 1, kLarge, [](const GroupedShape& s, int) {
    const LowShape l(s);
    const std::int64_t matrices = l.groups / l.parts;
    ExactOperands draw(s.dtype, s.seed);
    return Case{s.dtype,
                fmt::format("{}, {} a right operand, with a low-rank part", s.text(), l.parts),
                {draw.left(s.rows() * s.k), draw.right(matrices * s.k * s.n), draw.left(s.rows() * l.kRank),
                 draw.right(l.groups * l.kRank * s.n), s.sizes()},
                {{"out", PoisonedArray(s.dtype, s.rows() * s.n)}},
                [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  gmm(pool, {.lhs = in[0].view(s.of_k()),
                             .rhs = in[1].view({matrices, s.k, s.n}),
                             .bias = {},
                             .group_sizes = in[4].view(),
                             .out = out[0].view(s.of_n()),
                             .low = {in[2].view({s.rows(), l.kRank}), in[3].view({l.groups, l.kRank, s.n})}});
                }};
  });
}

std::vector<Case> gmm_pair_low_cases(std::uint32_t seed) {
  return grouped_cases(seed, 2, kLargePair, [](const GroupedShape& s, int variant) {
    const LowShape l(s);
    const bool alone = variant == 1;
    const Shape of_weights{l.groups / l.parts, s.k, s.n}, of_low{l.groups, l.kRank, s.n};
    const std::int64_t weights = of_weights[0] * s.k * s.n, low = l.groups * l.kRank * s.n;
    ExactOperands draw(s.dtype, s.seed);
    const PairRows rows(s, true);
    const PoisonedArray out(s.dtype, s.rows() * s.n);
    Case c{
        s.dtype,
        fmt::format("{}, {} a right operand, with low-rank parts{}", s.text(), l.parts,
                    alone ? ", alone" : ""),
        {draw.left(rows.stored * s.k), draw.right(weights), draw.right(weights),
         draw.left(s.rows() * l.kRank), draw.right(low), draw.right(low), i32_array(rows.index), s.sizes()},
        {},
        [=](ThreadPool& pool, const Arrays& in, Arrays& o) {
          gmm_pair(pool, {.x = in[0].view({rows.stored, s.k}),
                          .index = in[6].view(),
                          .rhs_0 = in[1].view(of_weights),
                          .rhs_1 = in[2].view(of_weights),
                          .group_sizes = in[7].view(),
                          .out_0 = alone ? TensorView() : o[0].view(s.of_n()),
                          .out_1 = alone ? TensorView() : o[1].view(s.of_n()),
                          .row_weights = {},
                          .hidden = o.back().view(s.of_n()),
                          .low = in[3].view({s.rows(), l.kRank}),
                          .low_rhs_0 = in[4].view(of_low),
                          .low_rhs_1 = in[5].view(of_low)});
        }};
    if (!alone) c.outputs = {{"out_0", out}, {"out_1", out}};
    c.outputs.push_back({"hidden", out, activation_bound(s.dtype)});
    return c;
  });
}

std::vector<Case> gmm_dlhs_low_cases(std::uint32_t seed) {
  return grouped_cases(seed, 1, kLargeDlhs, [](const GroupedShape& s, int) {
    const std::int64_t groups = LowShape(s).groups;
    constexpr std::int64_t kRank = LowShape::kRank;
    ExactOperands draw(s.dtype, s.seed);
    return Case{
        s.dtype,
        s.text() + ", with low-rank parts",
        {draw.left(s.rows() * s.n), draw.left(s.rows() * s.n), draw.right(s.weights()),
         draw.right(s.weights()), draw.left(s.rows() * kRank), draw.right(groups * s.k * kRank), s.sizes()},
        {{"dlhs", PoisonedArray(s.dtype, s.rows() * s.k)}},
        [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
          const GmmLow low{in[4].view({s.rows(), kRank}), in[5].view({groups, s.k, kRank})};
          gmm_dlhs_pair(pool, {in[0].view(s.of_n()),
                               in[1].view(s.of_n()),
                               in[2].view(s.of_weights()),
                               in[3].view(s.of_weights()),
                               in[6].view(),
                               out[0].view(s.of_k()),
                               {low, low}});
        }};
  });
}

}  // namespace

std::vector<KernelCases> grouped_matmul_kernels() {
  return {{"gmm", "product", gmm_cases},
          {"gmm_dlhs", "product", gmm_dlhs_cases},
          {"gmm_drhs", "product", gmm_drhs_cases},
          {"gmm_pair", "product", gmm_pair_cases},
          {"gmm_dlhs_pair", "product", gmm_dlhs_pair_cases},
          {"gmm_drhs_pair", "product", gmm_drhs_pair_cases},
          {"gmm_low", "product", gmm_low_cases},
          {"gmm_pair_low", "product", gmm_pair_low_cases},
          {"gmm_dlhs_low", "product", gmm_dlhs_low_cases},
          {"gated_product", "product", gated_product_cases},
          {"gated_down_backward", "gated_down_backward", gated_down_backward_cases}};
}

}  // namespace switchyard::selftest
