// Hopper's loss of narrow models on the emulator: right, and with the same bits in every order of threads and
// whenever copies and products end. Selftest's cases hold it to the reference's bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "emulator/testing.h"
#include "kernels/loss/cross_entropy_problem.h"
#include "kernels/loss/reference/cross_entropy_reference.h"

namespace switchyard::gpu {
namespace {

struct NarrowCase {
  std::string name;
  std::int64_t rows, emb, vocab, vocab_begin = 0;
  bool vocab_major = true;
  float soft_cap = 0;
};

std::vector<NarrowCase> narrow_cases() {
  return {
      {"one row and column", 1, 64, 1},
      {"64, tiles without a rest", 128, 64, 256},
      {"64, with rests", 200, 64, 600, 50},
      {"64, the vocabulary contiguous", 200, 64, 600, 50, false},
      {"64, a soft cap", 70, 64, 300, 20, true, 2.5f},
      {"128", 200, 128, 392, 50},
      {"128, the vocabulary contiguous, a soft cap", 130, 128, 392, 0, false, 2.5f},
      {"pieces of the vocabulary", 70, 64, 1100, 30},
      {"pieces of the vocabulary, contiguous", 70, 64, 1104, 30, false},
      {"pieces of the rows", 1100, 64, 136, 10},
      {"pieces of the rows, the vocabulary contiguous", 1100, 64, 136, 10, false},
      {"40", 65, 40, 136, 7},
      {"88, the vocabulary contiguous", 65, 88, 136, 7, false},
  };
}

template <typename T>
std::vector<T> normal_numbers(std::int64_t count, unsigned seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& value : values) value = T(normal(random));
  return values;
}

class NarrowProblem {
 public:
  explicit NarrowProblem(const NarrowCase& of)
      : c(of),
        hidden(normal_numbers<bfloat16>(c.rows * c.emb, 1)),
        weight(normal_numbers<bfloat16>(c.vocab * c.emb, 2, 1.5f / std::sqrt(static_cast<float>(c.emb)))),
        softmax(normal_numbers<float>(c.rows, 3)),
        target(normal_numbers<float>(c.rows, 4)),
        lse(static_cast<std::size_t>(c.rows)),
        target_logit(lse.size()) {
    // Some targets lie on each side of the local columns.
    std::mt19937 random(5);
    const auto span = static_cast<std::uint32_t>(c.vocab + 2 * c.vocab_begin + 1);
    for (std::int64_t r = 0; r < c.rows; ++r)
      targets.push_back(static_cast<std::int32_t>(random() % span) - (c.vocab_begin == 0 ? 1 : 0));
    reference::linear_cross_entropy<bfloat16>(problem(), lse.data(), target_logit.data());
  }

  CrossEntropyProblem problem() const {
    return {.rows = c.rows,
            .emb = c.emb,
            .vocab = c.vocab,
            .vocab_begin = c.vocab_begin,
            .dtype = DType::bf16,
            .hidden = hidden.data(),
            .weight = weight.data(),
            .weight_vocab_major = c.vocab_major,
            .targets = targets.data(),
            .logit_soft_cap = c.soft_cap};
  }
  CrossEntropyLogits logits() const {
    return {.hidden = emulator::on_gpu(hidden, {c.rows, c.emb}),
            .weight = emulator::on_gpu(weight, weight_shape()),
            .weight_vocab_major = c.vocab_major,
            .targets = emulator::on_gpu(targets, {c.rows}),
            .vocab_begin = c.vocab_begin,
            .logit_soft_cap = c.soft_cap};
  }
  Shape weight_shape() const { return c.vocab_major ? Shape{c.vocab, c.emb} : Shape{c.emb, c.vocab}; }
  TensorView row(const std::vector<float>& x) const { return emulator::on_gpu(x, {c.rows}); }

  const NarrowCase c;
  std::vector<bfloat16> hidden, weight;
  std::vector<std::int32_t> targets;
  std::vector<float> softmax, target, lse, target_logit;
};

template <typename T>
bool same_bits(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
}

void expect_close(const std::vector<float>& found, const std::vector<float>& expected, const char* what) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], expected[i], 2e-6 + 2e-6 * std::abs(expected[i])) << what << ' ' << i;
}

// Calls body() late and early, in several orders of threads, and once with proxies checked.
template <typename Body>
void in_narrow_timings(const Body& body) {
  emulator::in_all_timings(body);
  const emulator::Timing now(emulator::Order::forward, emulator::Pace::late, true);
  body();
}

TEST(NarrowLoss, SumsAreTheReferencesInEveryTiming) {
  for (const NarrowCase& c : narrow_cases()) {
    SCOPED_TRACE(c.name);
    const NarrowProblem p(c);
    std::vector<float> first;
    in_narrow_timings([&] {
      const std::vector<float> lse(p.lse.size(), std::nanf("")), target_logit = lse;
      ASSERT_EQ(narrow_loss_refuses(p.logits()), nullptr);
      narrow_cross_entropy({p.logits(), p.row(lse), p.row(target_logit)});
      expect_close(lse, p.lse, "lse");
      expect_close(target_logit, p.target_logit, "target_logit");
      if (first.empty()) first = lse;
      EXPECT_TRUE(same_bits(lse, first));
    });
  }
}

// Each gradient is rounded to 2^-9 of it before products.
template <typename T>
void expect_gradient(const std::vector<T>& found, const std::vector<float>& expected, const char* what) {
  ASSERT_EQ(found.size(), expected.size());
  float largest = 0;
  for (const float x : expected) largest = std::max(largest, std::abs(x));
  ASSERT_GT(largest, 0) << what;
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(static_cast<float>(found[i]), expected[i], 1e-2 * static_cast<double>(largest))
        << what << ' ' << i;
}

TEST(NarrowLoss, GradientsAreTheReferencesInEveryTiming) {
  for (const NarrowCase& c : narrow_cases()) {
    SCOPED_TRACE(c.name);
    const NarrowProblem p(c);
    std::vector<float> dhidden(p.hidden.size()), dweight(p.weight.size()), first_hidden;
    reference::linear_cross_entropy_backward<bfloat16>(p.problem(), p.lse.data(), p.softmax.data(),
                                                       p.target.data(), dhidden.data(), dweight.data());
    std::vector<bfloat16> first_weight;
    in_narrow_timings([&] {
      const std::vector<float> hidden_found(dhidden.size(), std::nanf(""));
      const std::vector<bfloat16> weight_found(dweight.size(), bfloat16(std::nanf("")));
      LinearCrossEntropyBackwardArgs args{p.logits(),
                                          p.row(p.lse),
                                          p.row(p.softmax),
                                          p.row(p.target),
                                          emulator::on_gpu(hidden_found, {c.rows, c.emb}),
                                          emulator::on_gpu(weight_found, p.weight_shape())};
      narrow_cross_entropy_backward(args);
      expect_gradient(hidden_found, dhidden, "dhidden");
      expect_gradient(weight_found, dweight, "dweight");
      if (first_hidden.empty()) first_hidden = hidden_found, first_weight = weight_found;
      EXPECT_TRUE(same_bits(hidden_found, first_hidden) && same_bits(weight_found, first_weight));
    });
  }
}

}  // namespace
}  // namespace switchyard::gpu
