// Gate and up as one product on the emulator, at each pace and in each order of threads, against two products
// and swiglu: to the bit, with rows as they stand and looked up, for groups that end on all sides of the
// edges of tiles. Rows behind those of all groups are poison, and must stay it.
#include "kernels/product/cuda/gated_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "emulator/testing.h"
#include "kernels/cuda/launch_pool.h"
#include "kernels/cuda/planned.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/product/composed.h"
#include "kernels/product/grouped_matmul.h"

namespace switchyard::gpu {
namespace {

using emulator::Order;
using emulator::Pace;
using emulator::Timing;

const std::vector<std::int32_t> kGatedEdges{0, 1, 63, 64, 65, 127, 128, 129, 130, 0, 257, 0};

struct GatedCase {
  std::string name;
  std::int64_t n, k;
  std::vector<std::int32_t> sizes = kGatedEdges;
  bool looked_up = false, weighted = false, keeps = true, activated = true;
  bool exact = true;            // sums of whole numbers, the same in any order
  bool checks_proxies = false;  // takes time

  std::int64_t rows() const { return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}); }
};

std::vector<GatedCase> gated_cases() {
  return {
      {.name = "rows as they stand", .n = 264, .k = 72, .weighted = true, .checks_proxies = true},
      {.name = "rows looked up", .n = 264, .k = 72, .looked_up = true, .weighted = true},
      {.name = "rows looked up, proxies",
       .n = 72,
       .k = 72,
       .sizes = {3, 70},
       .looked_up = true,
       .checks_proxies = true},
      {.name = "hidden alone",
       .n = 136,
       .k = 200,
       .sizes = {65, 0, 300},
       .looked_up = true,
       .weighted = true,
       .keeps = false},
      {.name = "without the activation",
       .n = 64,
       .k = 64,
       .sizes = {130, 1},
       .looked_up = true,
       .activated = false},
      {.name = "deep", .n = 128, .k = 1032, .sizes = {65, 200}, .looked_up = true},
      {.name = "fractions", .n = 200, .k = 328, .sizes = {0, 129, 70}, .weighted = true, .exact = false},
      {.name = "fractions, looked up",
       .n = 200,
       .k = 328,
       .sizes = {129, 70, 0},
       .looked_up = true,
       .weighted = true,
       .exact = false},
  };
}

std::vector<bfloat16> operand(const GatedCase& c, std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<bfloat16> values(static_cast<std::size_t>(count));
  for (bfloat16& value : values)
    value = bfloat16(c.exact ? static_cast<float>(static_cast<int>(random() % 5) - 2) : normal(random));
  return values;
}

// Gate, up and hidden, with poison behind.
using Outputs = std::vector<std::vector<bfloat16>>;

class GatedRun {
 public:
  explicit GatedRun(const GatedCase& c)
      : c_(c),
        stored_(c.looked_up ? c.rows() / 2 + 3 : c.rows() + kBehind),
        x_(operand(c, stored_ * c.k, 1)),
        weights_{operand(c, groups() * c.k * c.n, 2), operand(c, groups() * c.k * c.n, 3)} {
    std::mt19937 random(4);
    for (std::int64_t row = 0; row < c.rows() + kBehind; ++row) {
      index_.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(stored_)));
      row_weights_.push_back(static_cast<float>(random() % 1000) / 700.0f);
    }
  }

  template <typename Use>
  auto with_product(const Outputs& out, const Use& use) const {
    const GmmPairArgs all = args(out);
    const Product::Term term{all.x, all.rhs_0, all.index};
    const Product::Right right{all.rhs_1, all.out_1};
    const GatedEpilogue gated{all.row_weights, all.hidden};
    return use(Product{.terms = {&term, 1},
                       .right = {&right, 1},
                       .c = all.out_0,
                       .group_sizes = all.group_sizes,
                       .groups = Groups::rows,
                       .gated = &gated});
  }

  Outputs of(void (*product)(const Product&)) const {
    // The views have the poisoned rows, too, so that no box may reach behind the groups.
    Outputs out(3, std::vector<bfloat16>(static_cast<std::size_t>((c_.rows() + kBehind) * c_.n), poison()));
    with_product(out, product);
    return out;
  }

  GmmPairArgs args(const Outputs& out) const {
    const Shape of_out{c_.rows() + kBehind, c_.n}, of_weights{groups(), c_.k, c_.n};
    const auto view = [&](const std::vector<bfloat16>& values, const Shape& shape, bool given = true) {
      return given ? emulator::on_gpu(values, shape) : TensorView();
    };
    return {.x = view(x_, {stored_, c_.k}),
            .index = c_.looked_up ? emulator::on_gpu(index_, {c_.rows() + kBehind}) : TensorView(),
            .rhs_0 = view(weights_[0], of_weights),
            .rhs_1 = view(weights_[1], of_weights),
            .group_sizes = emulator::on_gpu(c_.sizes, {groups()}),
            .out_0 = view(out[0], of_out, c_.keeps),
            .out_1 = view(out[1], of_out, c_.keeps),
            .row_weights = c_.weighted ? emulator::on_gpu(row_weights_, {c_.rows() + kBehind}) : TensorView(),
            .hidden = view(out[2], of_out, c_.activated)};
  }

 private:
  static constexpr std::int64_t kBehind = 70;
  static bfloat16 poison() { return bfloat16(std::nanf("")); }
  std::int64_t groups() const { return std::ssize(c_.sizes); }

  const GatedCase& c_;
  std::int64_t stored_;
  std::vector<bfloat16> x_, weights_[2];
  std::vector<std::int32_t> index_;
  std::vector<float> row_weights_;
};

void composed(const Product& product) {
  LaunchPool pool;
  composed_product(pool, product);
}

// Two products of the same order of sums as the one has.
void by_the_copy_engine(const Product& p) {
  Product::Term term = p.terms[0];
  std::vector<bfloat16> gathered;
  if (term.a_rows.defined()) {
    const std::int64_t k = term.a.dim(1);
    const auto* const index = term.a_rows.device_data<std::int32_t>();
    for (std::int64_t row = 0; row < term.a_rows.size(); ++row) {
      const auto* const from = term.a.device_data<bfloat16>() + index[row] * k;
      gathered.insert(gathered.end(), from, from + k);
    }
    term.a = emulator::on_gpu(gathered, {term.a_rows.size(), k});
    term.a_rows = {};
  }
  const Product::Right& up = p.right[0];
  for (const auto& [weights, out] : {std::pair(term.b, p.c), std::pair(up.b, up.c)}) {
    term.b = weights;
    tma_product(
        lowered({.terms = {&term, 1}, .c = out, .group_sizes = p.group_sizes, .groups = Groups::rows}));
  }
  LaunchPool pool;
  if (p.gated->hidden.defined()) switchyard::swiglu(pool, {p.c, up.c, p.gated->row_weights, p.gated->hidden});
}

// `rows`: those of the groups; what is behind them must be poison.
void expect_same_bits(const Outputs& found, const Outputs& expected, const GatedCase& c) {
  for (int which = 0; which < 3; ++which) {
    const bool wanted = which < 2 ? c.keeps : c.activated;
    for (std::size_t i = 0; i < found[which].size(); ++i) {
      const bool written = wanted && static_cast<std::int64_t>(i) < c.rows() * c.n;
      if (written && std::isnan(static_cast<float>(expected[which][i])))
        FAIL() << "the expected value is poison: nothing is compared";
      const std::uint16_t bits = written ? expected[which][i].bits : bfloat16(std::nanf("")).bits;
      ASSERT_EQ(found[which][i].bits, bits)
          << "output " << which << ", row " << static_cast<std::int64_t>(i) / c.n << ", column "
          << static_cast<std::int64_t>(i) % c.n;
    }
  }
}

TEST(GatedProduct, HasTheBitsOfTwoProductsAndTheActivation) {
  for (const GatedCase& c : gated_cases()) {
    SCOPED_TRACE(c.name);
    GatedCase all = c;  // the other way always has gate and up
    all.keeps = true;
    const Outputs expected = GatedRun(all).of(c.exact ? composed : by_the_copy_engine);
    const GatedRun run(c);
    const auto expect_now = [&](Order order, Pace pace, bool proxies) {
      const Timing now(order, pace, proxies);
      expect_same_bits(run.of(hopper_gated_product), expected, c);
    };
    expect_now(Order::forward, Pace::late, false);
    expect_now(Order::reverse, Pace::early, false);
    expect_now(Order::random, Pace::random, false);
    if (c.checks_proxies) expect_now(Order::random, Pace::late, true);
  }
}

TEST(GatedProduct, WithoutGateAndUpTheActivationIsTheSame) {
  GatedCase c{.name = "", .n = 72, .k = 64, .sizes = {3, 0, 70}, .looked_up = true, .weighted = true};
  const Outputs all = GatedRun(c).of(composed);
  c.keeps = false;
  const Outputs alone = GatedRun(c).of(composed);
  for (std::size_t i = 0; i < static_cast<std::size_t>(c.rows() * c.n); ++i) {
    ASSERT_FALSE(std::isnan(static_cast<float>(all[2][i])));
    ASSERT_EQ(alone[2][i].bits, all[2][i].bits) << "number " << i;
  }
}

TEST(GatedProduct, OfNoRowsIsNothing) {
  for (const bool keeps : {false, true}) {
    const GatedCase c{.name = "", .n = 72, .k = 64, .sizes = {0, 0}, .looked_up = true};
    const GatedRun run(c);
    const GmmPairArgs args = run.args(Outputs(3));
    LaunchPool pool;
    const Product::Term term{args.x, args.rhs_0, args.index.rows(0, 0)};
    const TensorView empty = args.x.rows(0, 0).block(0, {0, 72}, {72, 1});
    const Product::Right right{args.rhs_1, keeps ? empty : TensorView()};
    const GatedEpilogue gated{{}, empty};
    const Product product{.terms = {&term, 1},
                          .right = {&right, 1},
                          .c = keeps ? empty : TensorView(),
                          .group_sizes = args.group_sizes,
                          .groups = Groups::rows,
                          .gated = &gated};
    EXPECT_NO_THROW(multiply(pool, product));
  }
}

TEST(GatedProduct, SaysWhatItDoesNotTake) {
  const auto reason = [](GatedCase c) {
    const GatedRun run(c);
    Outputs out(3, std::vector<bfloat16>(static_cast<std::size_t>((c.rows() + 70) * c.n)));
    const char* const refused = run.with_product(out, hopper_gated_refuses);
    return std::string(refused == nullptr ? "" : refused);
  };
  const PlannedGpu hopper(9);
  const GatedCase taken{.name = "", .n = 256, .k = 64, .sizes = {300}};
  EXPECT_EQ(reason(taken), "");
  GatedCase few = taken, odd = taken;
  few.sizes = {3, 3, 3};
  EXPECT_EQ(reason(few), "it is too small");
  odd.n = 260;
  EXPECT_EQ(reason(odd), "rows are no multiples of 16 bytes");
  GatedCase many = taken;
  many.sizes.assign(400, 140);
  many.n = 256, many.k = 64;
  EXPECT_EQ(reason(many), "the groups are too many");
}

}  // namespace
}  // namespace switchyard::gpu
