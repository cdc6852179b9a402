// The way back through down and the activation as one kernel on the emulator, in all timings, against a
// product, swiglu_backward and swiglu: to the bit but for the gradients of row weights, which are sums in
// another order. Rows behind those of all groups are poison, and must stay it.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "emulator/testing.h"
#include "kernels/cuda/launch_pool.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/product/cuda/gated_product.h"
#include "kernels/product/grouped_matmul.h"
#include "kernels/product/scratch.h"

namespace switchyard::gpu {
namespace {

using emulator::Order;
using emulator::Pace;
using emulator::Timing;

struct DownCase {
  std::string name;
  std::int64_t n, k;  // columns of gate and up, and of dy
  std::vector<std::int32_t> sizes;
  bool checks_proxies = false;  // takes time

  std::int64_t rows() const { return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}); }
};

const std::vector<DownCase>& down_cases() {
  static const std::vector<DownCase> cases{
      {.name = "edges", .n = 328, .k = 72, .sizes = {0, 1, 63, 64, 65, 127, 128, 129, 130, 0, 257, 0}},
      {.name = "proxies", .n = 136, .k = 72, .sizes = {3, 70}, .checks_proxies = true},
      {.name = "one tile", .n = 256, .k = 264, .sizes = {200, 0, 65}},
      {.name = "less than a block", .n = 8, .k = 64, .sizes = {65, 300}},
      {.name = "many parts a cluster", .n = 520, .k = 200, .sizes = {300, 5, 270}},
  };
  return cases;
}

constexpr std::int64_t kBehind = 70;  // rows

// Results, with poison behind the groups' rows.
struct DownResults {
  std::vector<bfloat16> dgate, dup, hidden;
  std::vector<float> weights;
};

class DownRun {
 public:
  explicit DownRun(const DownCase& c) : c_(c), groups_(std::ssize(c.sizes)) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto whole = [&] { return static_cast<float>(static_cast<int>(random() % 5) - 2); };
    const auto fill = [](std::vector<bfloat16>& values, std::int64_t count, const auto& next) {
      for (std::int64_t i = 0; i < count; ++i) values.emplace_back(next());
    };
    const std::int64_t rows = c.rows() + kBehind;
    fill(dy_, rows * c.k, whole);  // sums that are exact in any order
    fill(wo_, groups_ * c.n * c.k, whole);
    fill(gate_, rows * c.n, [&] { return normal(random); });
    fill(up_, rows * c.n, [&] { return normal(random); });
    for (std::int64_t row = 0; row < rows; ++row) weights_.push_back(0.5f + std::abs(normal(random)));
  }

  DownResults of(void (*backward)(const GatedDownBackwardArgs&)) const {
    const auto count = static_cast<std::size_t>((c_.rows() + kBehind) * c_.n);
    const std::vector<bfloat16> poison(count, bfloat16(std::nanf("")));
    DownResults out{poison, poison, poison, std::vector<float>(weights_.size(), std::nanf(""))};
    const Shape of_rows{c_.rows() + kBehind, c_.n}, of_dy{c_.rows() + kBehind, c_.k};
    backward({.dy = emulator::on_gpu(dy_, of_dy),
              .wo = emulator::on_gpu(wo_, {groups_, c_.n, c_.k}),
              .group_sizes = emulator::on_gpu(c_.sizes, {groups_}),
              .gate = emulator::on_gpu(gate_, of_rows),
              .up = emulator::on_gpu(up_, of_rows),
              .row_weights = emulator::on_gpu(weights_, {std::ssize(weights_)}),
              .dgate = emulator::on_gpu(out.dgate, of_rows),
              .dup = emulator::on_gpu(out.dup, of_rows),
              .hidden = emulator::on_gpu(out.hidden, of_rows),
              .drow_weights = emulator::on_gpu(out.weights, {std::ssize(weights_)})});
    return out;
  }

  // The largest that the terms of a row's sum add up to: |dhidden · silu(gate) · up|, as expected.dup has it.
  double terms_of(const DownResults& expected, std::int64_t row) const {
    double sum = 0;
    for (std::int64_t i = row * c_.n; i < (row + 1) * c_.n; ++i)
      sum += std::abs(static_cast<float>(expected.dup[static_cast<std::size_t>(i)]) *
                      static_cast<float>(up_[static_cast<std::size_t>(i)]));
    return sum / weights_[static_cast<std::size_t>(row)];
  }

 private:
  const DownCase& c_;
  std::int64_t groups_;
  std::vector<bfloat16> dy_, wo_, gate_, up_;
  std::vector<float> weights_;
};

void expect_bits(const char* what, const std::vector<bfloat16>& found, const std::vector<bfloat16>& expected,
                 const DownCase& c) {
  for (std::int64_t i = 0; i < std::ssize(found); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const bool written = i < c.rows() * c.n;
    if (written && std::isnan(static_cast<float>(expected[at])))
      FAIL() << "the expected value is poison: nothing is compared";
    const std::uint16_t bits = written ? expected[at].bits : bfloat16(std::nanf("")).bits;
    ASSERT_EQ(found[at].bits, bits) << what << ", row " << i / c.n << ", column " << i % c.n;
  }
}

// A product, then the activation's way back.
void composed(const GatedDownBackwardArgs& args) {
  LaunchPool pool;
  const Scratch dhidden(args.gate, args.gate.dtype(), args.gate.shape());
  gmm_dlhs(pool, {args.dy, args.wo, args.group_sizes, dhidden.view()});
  switchyard::swiglu_backward(
      pool, {args.gate, args.up, args.row_weights, dhidden.view(), args.dgate, args.dup, args.drow_weights});
  switchyard::swiglu(pool, {args.gate, args.up, args.row_weights, args.hidden});
}

TEST(GatedDown, HasTheBitsOfAProductAndTheActivationBackward) {
  for (const DownCase& c : down_cases()) {
    SCOPED_TRACE(c.name);
    const DownRun run(c);
    const DownResults expected = run.of(composed);
    std::vector<float> first;
    const auto expect_now = [&](Order order, Pace pace, bool proxies) {
      const Timing now(order, pace, proxies);
      const DownResults found = run.of(hopper_gated_down);
      expect_bits("dgate", found.dgate, expected.dgate, c);
      expect_bits("dup", found.dup, expected.dup, c);
      expect_bits("hidden", found.hidden, expected.hidden, c);
      for (std::int64_t row = 0; row < c.rows(); ++row) {
        const auto at = static_cast<std::size_t>(row);
        ASSERT_NEAR(found.weights[at], expected.weights[at], 1e-6 * run.terms_of(expected, row))
            << "row " << row;
      }
      const std::vector<float> of_groups(found.weights.begin(), found.weights.begin() + c.rows());
      if (first.empty()) first = of_groups;
      EXPECT_EQ(of_groups, first) << "the order of sums depends on the timing";
    };
    expect_now(Order::forward, Pace::late, false);
    expect_now(Order::reverse, Pace::early, false);
    expect_now(Order::random, Pace::random, false);
    if (c.checks_proxies) expect_now(Order::random, Pace::late, true);
  }
}

}  // namespace
}  // namespace switchyard::gpu
