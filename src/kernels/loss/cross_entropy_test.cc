#include "kernels/loss/cross_entropy.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/loss/reference/cross_entropy_reference.h"
#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;

struct Case {
  std::int64_t rows, emb, vocab;
  DType dtype = DType::f32;
  bool vocab_major = false;
  float soft_cap = 0;
  std::int64_t vocab_begin = 0;
};

std::vector<double> doubles(const Array& x) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < x.size(); ++i) result.push_back(static_cast<double>(x.at(i)));
  return result;
}

Array array_of(const std::vector<double>& x, DType dtype = DType::f32) {
  Array result(dtype, static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i)
    result.set(static_cast<std::int64_t>(i), static_cast<float>(x[i]));
  return result;
}

struct Problem {
  explicit Problem(const Case& c, bool integers = false)
      : hidden(integers ? Array::integers(c.dtype, c.rows * c.emb, 1)
                        : Array::normal(c.dtype, c.rows * c.emb, 1)),
        weight(integers
                   ? Array::integers(c.dtype, c.vocab * c.emb, 2)
                   : Array::normal(c.dtype, c.vocab * c.emb, 2, 1.5f / std::sqrt(static_cast<float>(c.emb)))),
        softmax_coefficient(Array::normal(DType::f32, c.rows, 3)),
        target_coefficient(integers ? Array::integers(DType::f32, c.rows, 4)
                                    : Array::normal(DType::f32, c.rows, 4)) {
    // About a third of the targets lie on each side of the local columns.
    std::mt19937 generator(5);
    for (std::int64_t r = 0; r < c.rows; ++r) {
      const auto span = static_cast<std::uint32_t>(c.vocab + 2 * c.vocab_begin + 1);
      targets.push_back(static_cast<std::int32_t>(generator() % span) - (c.vocab_begin == 0 ? 1 : 0));
    }
    logits = {.hidden = hidden.view({c.rows, c.emb}),
              .weight = weight.view(c.vocab_major ? Shape{c.vocab, c.emb} : Shape{c.emb, c.vocab}),
              .weight_vocab_major = c.vocab_major,
              .targets = TensorView::of_host(targets.data(), {c.rows}),
              .vocab_begin = c.vocab_begin,
              .logit_soft_cap = c.soft_cap};
    hidden_d = doubles(hidden), weight_d = doubles(weight);
    args_d = {.rows = c.rows,
              .emb = c.emb,
              .vocab = c.vocab,
              .vocab_begin = c.vocab_begin,
              .dtype = c.dtype,
              .hidden = hidden_d.data(),
              .weight = weight_d.data(),
              .weight_vocab_major = c.vocab_major,
              .targets = targets.data(),
              .logit_soft_cap = c.soft_cap};
    lse_d.resize(static_cast<std::size_t>(c.rows)), target_d.resize(lse_d.size());
    reference::linear_cross_entropy<double>(args_d, lse_d.data(), target_d.data());
  }

  Array hidden, weight, softmax_coefficient, target_coefficient;
  std::vector<std::int32_t> targets;
  std::vector<double> hidden_d, weight_d, lse_d, target_d;
  CrossEntropyLogits logits;
  CrossEntropyProblem args_d;  // in double, for the reference
};

std::string describe(const Case& c, Isa isa) {
  return std::string(name_of(isa)) + " " + std::string(name_of(c.dtype)) + " rows " + std::to_string(c.rows) +
         " emb " + std::to_string(c.emb) + " vocab " + std::to_string(c.vocab) +
         (c.vocab_major ? " vocab-major" : "") + " cap " + std::to_string(c.soft_cap);
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (bool major : {false, true}) {
      for (std::int64_t rows : {0, 1, 33}) {
        for (std::int64_t emb : {1, 30, 64, 70}) {
          for (std::int64_t vocab : {0, 1, 17, 600})
            result.push_back({rows, emb, vocab, dtype, major, 0, vocab / 2});
        }
      }
      result.push_back({290, 33, 290, dtype, major});
      result.push_back({20, 8, 100, dtype, major, 2.5f, 10});
      result.push_back({5, 300, 50, dtype, major});
      result.push_back({33, 160, 600, dtype, major, 0, 300});
      result.push_back({530, 132, 700, dtype, major});  // wide enough to keep exponentials on AMX
      result.push_back({5, 520, 50, dtype, major});
      result.push_back({530, 4, 2060, dtype, major});
      result.push_back({70, 544, 2100, dtype, major, 0, 900});  // wide, with several groups of logits
      result.push_back({2070, 513, 40, dtype, major});          // wide, with several blocks of rows
      result.push_back({33, 4, 10300, dtype, major});  // more than eight chunks (cross_entropy_tiles_pack.h)
    }
  }
  return result;
}

struct Outputs {
  Array lse, target_logit, dhidden, dweight;
  bool operator==(const Outputs&) const = default;
};

Outputs run(Problem& p, const Case& c, int threads) {
  ThreadPool pool(threads);
  Outputs o{Array(DType::f32, c.rows), Array(DType::f32, c.rows), Array(DType::f32, c.rows * c.emb),
            Array(c.dtype, c.vocab * c.emb)};
  linear_cross_entropy(pool, {p.logits, o.lse.view(), o.target_logit.view()});
  const Array lse = array_of(p.lse_d);
  linear_cross_entropy_backward(pool, {.logits = p.logits,
                                       .lse = lse.view(),
                                       .softmax_coefficient = p.softmax_coefficient.view(),
                                       .target_coefficient = p.target_coefficient.view(),
                                       .dhidden = o.dhidden.view(),
                                       .dweight = o.dweight.view(p.logits.weight.shape())});
  return o;
}

// The same with the logits made once, where a kernel can, in blocks of rows. Blocks are `summed` in order,
// when their sums are there.
Outputs run_at_once(Problem& p, const Case& c, int threads) {
  ThreadPool pool(threads);
  Outputs o{Array(DType::f32, c.rows), Array(DType::f32, c.rows), Array(DType::f32, c.rows * c.emb),
            Array(c.dtype, c.vocab * c.emb)};
  Array softmax(DType::f32, c.rows), target(DType::f32, c.rows);
  CrossEntropyLogits logits = p.logits;
  logits.whole_vocab = 262144;  // blocks of 256 rows
  EXPECT_EQ(loss_rows_at_once(logits), 256);
  std::int64_t summed = 0;
  linear_cross_entropy_with_gradients(
      pool,
      {.logits = logits,
       .lse = o.lse.view(),
       .target_logit = o.target_logit.view(),
       .softmax_coefficient = softmax.view(),
       .target_coefficient = target.view(),
       .dhidden = o.dhidden.view(),
       .dweight = o.dweight.view(logits.weight.shape()),
       .summed = [&](std::int64_t begin, std::int64_t end) {
         EXPECT_EQ(begin, summed);
         EXPECT_EQ(end, std::min(c.rows, begin + 256));
         for (std::int64_t r = begin; r < end; ++r) {
           EXPECT_TRUE(c.vocab == 0 || std::abs(o.lse.at(r) - p.lse_d[static_cast<std::size_t>(r)]) < 1e-3);
           softmax.set(r, p.softmax_coefficient.at(r));
           target.set(r, p.target_coefficient.at(r));
         }
         summed = end;
       }});
  EXPECT_EQ(summed, c.rows);
  return o;
}

// With no softmax part dlogit is an integer at the target, and every product is exact.
TEST(LinearCrossEntropy, TargetPartIsExactOnIntegers) {
  for (const Case& c : cases()) {
    if (c.soft_cap > 0) continue;
    Problem p(c, true);
    for (std::int64_t r = 0; r < c.rows; ++r) p.softmax_coefficient.set(r, 0);
    std::vector<double> dhidden(p.hidden_d.size()), dweight(p.weight_d.size());
    const auto softmax = doubles(p.softmax_coefficient), target = doubles(p.target_coefficient);
    reference::linear_cross_entropy_backward<double>(p.args_d, p.lse_d.data(), softmax.data(), target.data(),
                                                     dhidden.data(), dweight.data());
    for (Isa isa : kernel_test::every_isa()) {
      if (isa == Isa::ref && c.rows * c.vocab > 100000) continue;  // the reference against itself, slowly
      const ScopedIsa cap(isa);
      SCOPED_TRACE(describe(c, isa));
      for (auto* const run_of : {run, run_at_once}) {
        const Outputs found = run_of(p, c, 1);
        EXPECT_TRUE(kernel_test::same(found.dhidden, array_of(dhidden)));
        EXPECT_TRUE(kernel_test::same(found.dweight, array_of(dweight, c.dtype)));
      }
    }
  }
}

TEST(LinearCrossEntropy, ShardsAddUpToTheWhole) {
  const Case whole{7, 24, 90, DType::f32, true};
  Problem p(whole);
  ThreadPool pool(1);
  std::vector<float> lse(7), target(7), sum(7), sum_target(7);
  for (std::int64_t begin : {0, 31, 60}) {
    CrossEntropyLogits shard = p.logits;
    shard.vocab_begin = begin;
    shard.weight = p.logits.weight.slice(0, begin, begin == 60 ? 30 : begin == 31 ? 29 : 31);
    linear_cross_entropy(
        pool, {shard, TensorView::of_host(lse.data(), {7}), TensorView::of_host(target.data(), {7})});
    for (std::size_t r = 0; r < 7; ++r) sum[r] += std::exp(lse[r]), sum_target[r] += target[r];
  }
  for (std::size_t r = 0; r < 7; ++r) {
    EXPECT_NEAR(std::log(sum[r]), p.lse_d[r], 1e-5);
    EXPECT_NEAR(sum_target[r], p.target_d[r], 1e-5);
  }
}

TEST(LinearCrossEntropy, LargeLogitsNeitherOverflowNorVanish) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (Isa isa : kernel_test::every_isa()) {
      const ScopedIsa cap(isa);
      Array hidden(dtype, 2), weight(dtype, 3);
      hidden.set(0, 1), hidden.set(1, -1);
      weight.set(0, 10000), weight.set(1, -10000), weight.set(2, 0);
      const std::int32_t targets[] = {0, 2};
      const CrossEntropyLogits logits{.hidden = hidden.view({2, 1}),
                                      .weight = weight.view({3, 1}),
                                      .weight_vocab_major = true,
                                      .targets = TensorView::of_host(targets, {2})};
      ThreadPool pool(1);
      float lse[2], target[2], one[2] = {1, 1}, dhidden[2];
      const auto row = [](const float* x) { return TensorView::of_host(x, {2}); };
      const Array dweight(dtype, 3);
      linear_cross_entropy(pool, {logits, row(lse), row(target)});
      EXPECT_EQ(lse[0], weight.at(0));
      EXPECT_EQ(lse[1], weight.at(0));
      linear_cross_entropy_backward(
          pool, {logits, row(lse), row(one), row(one), row(dhidden), dweight.view({3, 1})});
      EXPECT_EQ(dhidden[0], 0);
      EXPECT_EQ(dhidden[1], weight.at(1));
    }
  }
}

// What is left of a target's coefficient must not be the rounding of a probability near 1.
TEST(LinearCrossEntropy, ALikelyTargetHasItsSmallGradient) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (Isa isa : kernel_test::every_isa()) {
      const ScopedIsa cap(isa);
      SCOPED_TRACE(name_of(isa));
      Array hidden(dtype, 1), weight(dtype, 2), dweight(dtype, 2);
      hidden.set(0, 1), weight.set(0, 9), weight.set(1, 0);
      const std::int32_t target = 0;
      const CrossEntropyLogits logits{.hidden = hidden.view({1, 1}),
                                      .weight = weight.view({2, 1}),
                                      .weight_vocab_major = true,
                                      .targets = TensorView::of_host(&target, {1})};
      ThreadPool pool(1);
      float lse, logit, dhidden;
      const float one = 1;
      const auto row = [](const float* x) { return TensorView::of_host(x, {1}); };
      linear_cross_entropy_with_gradients(pool, {.logits = logits,
                                                 .lse = row(&lse),
                                                 .target_logit = row(&logit),
                                                 .softmax_coefficient = row(&one),
                                                 .target_coefficient = row(&one),
                                                 .dhidden = row(&dhidden),
                                                 .dweight = dweight.view({2, 1}),
                                                 .summed = [](std::int64_t, std::int64_t) {}});
      const float other = 1 / (1 + std::exp(9.0f));  // 1.2e-4
      EXPECT_NEAR(dweight.at(0) / -other, 1, 1e-2);
      EXPECT_NEAR(dweight.at(1) / other, 1, 1e-2);
      EXPECT_NEAR(dhidden / (-9 * other), 1, 1e-2);
    }
  }
}

TEST(LinearCrossEntropy, NanInOneRowStaysInThatRow) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t emb : {32, 520}) {
      Problem p({40, emb, 70, dtype, true});
      p.hidden.set(3 * emb + 5, std::numeric_limits<float>::quiet_NaN());
      ThreadPool pool(1);
      std::vector<float> lse(40), target(40);
      linear_cross_entropy(
          pool, {p.logits, TensorView::of_host(lse.data(), {40}), TensorView::of_host(target.data(), {40})});
      for (std::size_t r = 0; r < 40; ++r) EXPECT_EQ(std::isnan(lse[r]), r == 3) << r;
    }
  }
}

// The gradient of sum_r w_r (lse - target_logit), along random directions of hidden and weight.
TEST(LinearCrossEntropy, ReferenceGradientIsTheFiniteDifference) {
  for (float soft_cap : {0.0f, 3.0f}) {
    Problem p({6, 5, 11, DType::f32, false, soft_cap});
    for (std::int32_t& t : p.targets) t = std::max(t, 0);
    const auto w = doubles(p.softmax_coefficient);
    const auto loss = [&] {
      std::vector<double> lse(6), target(6);
      reference::linear_cross_entropy<double>(p.args_d, lse.data(), target.data());
      double sum = 0;
      for (std::size_t r = 0; r < 6; ++r) sum += w[r] * (lse[r] - (p.targets[r] < 11 ? target[r] : 0));
      return sum;
    };
    std::vector<double> dhidden(30), dweight(55), target_w = w;
    reference::linear_cross_entropy_backward<double>(p.args_d, p.lse_d.data(), w.data(), target_w.data(),
                                                     dhidden.data(), dweight.data());
    const auto check = [&](std::vector<double>& x, const std::vector<double>& gradient) {
      const auto direction = doubles(Array::normal(DType::f32, static_cast<std::int64_t>(x.size()), 9));
      const double step = 1e-5;
      double expected = 0;
      for (std::size_t i = 0; i < x.size(); ++i)
        expected += gradient[i] * direction[i], x[i] += step * direction[i];
      double difference = loss();
      for (std::size_t i = 0; i < x.size(); ++i) x[i] -= 2 * step * direction[i];
      difference = (difference - loss()) / (2 * step);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += step * direction[i];
      EXPECT_NEAR(difference, expected, 1e-7 * (1 + std::abs(expected)));
    };
    check(p.hidden_d, dhidden);
    check(p.weight_d, dweight);
  }
}

}  // namespace
}  // namespace switchyard
