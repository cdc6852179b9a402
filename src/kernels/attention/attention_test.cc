#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/attention/reference/attention_reference.h"
#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;

struct Case {
  std::int64_t batch, q_length, kv_length, heads, kv_heads, qk_dim, v_dim;
  bool causal = true;
  int segments = 0;    // 0: null arrays
  bool index = false;  // positions given, keys ahead of the queries by kv_length - q_length
  KeyWindow seen = {};
  DType dtype = DType::f32;
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
  explicit Problem(const Case& c)
      : q(Array::normal(c.dtype, c.batch * c.q_length * c.heads * c.qk_dim, 1)),
        k(Array::normal(c.dtype, c.batch * c.kv_length * c.kv_heads * c.qk_dim, 2)),
        v(Array::normal(c.dtype, c.batch * c.kv_length * c.kv_heads * c.v_dim, 3)),
        dout(Array::normal(c.dtype, c.batch * c.q_length * c.heads * c.v_dim, 4)) {
    args = {c.batch,  c.q_length, c.kv_length, c.heads,  c.kv_heads,
            c.qk_dim, c.v_dim,    0.3f,        c.causal, c.dtype};
    args.seen = c.seen;
    const auto fill = [&](std::int64_t length, std::int64_t first, std::vector<std::int32_t>& index,
                          std::vector<std::int32_t>& segment) {
      for (std::int64_t i = 0; i < c.batch * length; ++i) {
        index.push_back(static_cast<std::int32_t>(first + i % length));
        segment.push_back(static_cast<std::int32_t>((i % length + i / length) * c.segments / length));
      }
    };
    fill(c.q_length, c.kv_length - c.q_length, q_index, q_segment);
    fill(c.kv_length, 0, kv_index, kv_segment);
    if (c.index) args.q_index = q_index.data(), args.kv_index = kv_index.data();
    if (c.segments > 0) args.q_segment = q_segment.data(), args.kv_segment = kv_segment.data();
    q_d = doubles(q), k_d = doubles(k), v_d = doubles(v), dout_d = doubles(dout);
    out_d.resize(dout_d.size());
    lse_d.resize(static_cast<std::size_t>(c.batch * c.heads * c.q_length));
    dq_d.resize(q_d.size()), dk_d.resize(k_d.size()), dv_d.resize(v_d.size());
    evaluate();
  }

  void evaluate() {
    reference::attention(args, q_d.data(), k_d.data(), v_d.data(), out_d.data(), lse_d.data());
    for (double& x : out_d) {
      if (args.dtype == DType::bf16) x = reference::to_double(reference::from_double<bfloat16>(x));
    }
    reference::attention_backward(args, q_d.data(), k_d.data(), v_d.data(), out_d.data(), lse_d.data(),
                                  dout_d.data(), dq_d.data(), dk_d.data(), dv_d.data());
  }

  Array q, k, v, dout;
  AttentionSpec args;
  std::vector<std::int32_t> q_index, kv_index, q_segment, kv_segment;
  std::vector<double> q_d, k_d, v_d, dout_d, out_d, lse_d, dq_d, dk_d, dv_d;
};

struct Outputs {
  Array out, lse, dq, dk, dv;
  bool operator==(const Outputs&) const = default;
};

Outputs run(Problem& p, int threads) {
  ThreadPool pool(threads);
  const DType dtype = p.args.dtype;
  Outputs o{Array(dtype, p.dout.size()), Array(DType::f32, static_cast<std::int64_t>(p.lse_d.size())),
            Array(dtype, p.q.size()), Array(dtype, p.k.size()), Array(dtype, p.v.size())};
  attention(pool, reference::attention_args(p.args, p.q.data(), p.k.data(), p.v.data(), o.out.data(),
                                            o.lse.floats()));
  // The reference's own output, so that a wrong forward does not hide a wrong backward pass.
  Array out = array_of(p.out_d, dtype), lse = array_of(p.lse_d);
  const AttentionArgs forward =
      reference::attention_args(p.args, p.q.data(), p.k.data(), p.v.data(), out.data(), lse.floats());
  attention_backward(pool, {forward, p.dout.view(forward.out.shape()), o.dq.view(forward.q.shape()),
                            o.dk.view(forward.k.shape()), o.dv.view(forward.v.shape())});
  return o;
}

std::vector<std::pair<Isa, DType>> every_path() {
  std::vector<std::pair<Isa, DType>> result;
  for (Isa isa : kernel_test::every_isa()) {
    for (DType dtype : {DType::f32, DType::bf16}) result.emplace_back(isa, dtype);
  }
  return result;
}

// The sets must be reached, not merely asked for: tiles round the weights, so their bits differ from
// AVX-512's, and those from the reference's double sums.
TEST(Attention, EverySetRunsItsOwnPath) {
  const Case c{1, 96, 96, 2, 1, 64, 64, true, 0, false, {}, DType::bf16};
  Problem p(c);
  std::vector<Outputs> found;
  for (Isa isa : kernel_test::every_isa()) {
    // The same operations as the next set, which may give the same bits.
    if (isa == Isa::avx2 || (isa == Isa::avx512_bf16 && machine_isa() == Isa::amx)) continue;
    const ScopedIsa cap(isa);
    found.push_back(run(p, 1));
    for (std::size_t i = 0; i + 1 < found.size(); ++i)
      EXPECT_FALSE(found[i].lse == found.back().lse) << name_of(isa);
  }
}

// With all scores equal the output is the mean of the allowed values: exact for powers of two.
TEST(Attention, MeanOfIntegersIsExact) {
  for (const auto& [isa, dtype] : every_path()) {
    const ScopedIsa cap(isa);
    constexpr std::int64_t kLength = 128, kDim = 16;
    Array q(dtype, kLength * kDim), k = Array::integers(dtype, kLength * kDim, 1);
    Array v = Array::integers(dtype, kLength * kDim, 2), out(dtype, kLength * kDim), lse(DType::f32, kLength);
    for (std::int64_t i = 0; i < q.size(); ++i) q.set(i, 0);
    AttentionSpec args{1, kLength, kLength, 1, 1, kDim, kDim, 1.0f, false, dtype};
    ThreadPool pool(1);
    attention(pool, reference::attention_args(args, q.data(), k.data(), v.data(), out.data(), lse.floats()));
    for (std::int64_t d = 0; d < kDim; ++d) {
      float sum = 0;
      for (std::int64_t j = 0; j < kLength; ++j) sum += v.at(j * kDim + d);
      const float exact = dtype == DType::bf16 ? static_cast<float>(bfloat16(sum / 128)) : sum / 128;
      for (std::int64_t i = 0; i < kLength; ++i) EXPECT_EQ(out.at(i * kDim + d), exact);
    }
  }
}

// A key that a query may not see must not touch it, even when it is NaN: skipped tiles are never read.
TEST(Attention, LaterKeysOfOtherTilesAreNotRead) {
  for (const auto& [isa, dtype] : every_path()) {
    const ScopedIsa cap(isa);
    Problem p({1, 128, 128, 2, 1, 16, 16, true, 0, false, {}, dtype});
    for (std::int64_t i = 64 * 16; i < p.k.size(); ++i) p.k.set(i, NAN), p.v.set(i, NAN);
    Array out(dtype, p.dout.size()), lse(DType::f32, 256);
    ThreadPool pool(1);
    attention(pool, reference::attention_args(p.args, p.q.data(), p.k.data(), p.v.data(), out.data(),
                                              lse.floats()));
    for (std::int64_t i = 0; i < 64 * 32; ++i)
      EXPECT_NEAR(out.at(i), p.out_d[static_cast<std::size_t>(i)], dtype == DType::bf16 ? 2e-2 : 1e-5);
    EXPECT_TRUE(std::isnan(out.at(127 * 32)));
  }
}

// Nor are earlier keys, of tiles before the window or the chunk, in either pass.
TEST(Attention, EarlierKeysOfTilesOutsideTheWindowAreNotRead) {
  constexpr std::int64_t kDim = 16, kNaNKeys = 64, kFirstFree = 128;
  for (const auto& [isa, dtype] : every_path()) {
    const ScopedIsa cap(isa);
    for (const KeyWindow seen : {KeyWindow{50, 0}, KeyWindow{0, 64}, KeyWindow{64, 128}}) {
      SCOPED_TRACE(std::string(name_of(isa)) + " window " + std::to_string(seen.window));
      const Case c{1, 320, 320, 1, 1, kDim, kDim, true, 0, false, seen, dtype};
      Problem p(c);
      for (std::int64_t i = 0; i < kNaNKeys * kDim; ++i) p.k.set(i, NAN), p.v.set(i, NAN);
      for (const int threads : {1, 3}) {
        const Outputs found = run(p, threads);
        const double loose = dtype == DType::bf16 ? 5e-2 : 5e-5;
        for (std::int64_t i = kFirstFree * kDim; i < found.out.size(); ++i) {
          const auto at = static_cast<std::size_t>(i);
          ASSERT_NEAR(found.out.at(i), p.out_d[at], loose);
          ASSERT_NEAR(found.dq.at(i), p.dq_d[at], loose);
          ASSERT_NEAR(found.dk.at(i), p.dk_d[at], loose);
          ASSERT_NEAR(found.dv.at(i), p.dv_d[at], loose);
        }
        EXPECT_TRUE(std::isnan(found.out.at(0)));
        EXPECT_TRUE(std::isnan(found.dq.at(0)));
      }
    }
  }
}

// Work is counted as the pairs that exist.
TEST(Attention, CountedWorkIsThatOfTheWindow) {
  struct Counter : WorkCounter {
    void count(const Work& work) override { flops += work.flops; }
    double flops = 0;
  };
  for (const std::int64_t length : {0, 1, 100, 128, 1000}) {
    for (const KeyWindow seen : {KeyWindow{1, 0}, KeyWindow{128, 0}, KeyWindow{0, 100}, KeyWindow{30, 100},
                                 KeyWindow{300, 100}, KeyWindow{5000, 5000}}) {
      AttentionSpec args{1, length, length, 1, 1, 1, 1};
      args.seen = seen;
      double pairs = 0;
      for (std::int64_t i = 0; i < length; ++i) {
        for (std::int64_t j = 0; j < length; ++j) pairs += reference::attention_allowed(args, 0, i, j);
      }
      EXPECT_EQ(seen.pairs(length), pairs);
      Counter counter;
      ThreadPool pool(counter, WorkspaceOf::none);
      attention(pool, reference::attention_args(args, nullptr, nullptr, nullptr, nullptr, nullptr));
      EXPECT_NEAR(counter.flops, pairs * 2 * 2, 1e-6 * pairs);
    }
  }
  const double all = KeyWindow{}.pairs(8192);
  EXPECT_LT((KeyWindow{128, 0}.pairs(8192)), all / 30);
}

// Scores that grow from key to key make every running maximum stale; the first keys' sums must shrink to
// nothing without overflow, also where a query sees its first key late.
TEST(Attention, ScoresFarApart) {
  for (const auto& [isa, dtype] : every_path()) {
    const ScopedIsa cap(isa);
    SCOPED_TRACE(name_of(isa));
    Problem p({1, 200, 200, 1, 1, 16, 16, true, 3, false, {}, dtype});
    for (std::int64_t j = 0; j < 200; ++j) {
      for (std::int64_t d = 0; d < 16; ++d) {
        p.q.set(j * 16 + d, d == 0 ? 2.0f : 0.0f);
        p.k.set(j * 16 + d, d == 0 ? 4.0f * static_cast<float>(j % 2 == 0 ? j : -j) : 1.0f);
      }
    }
    p.q_d = doubles(p.q), p.k_d = doubles(p.k);
    p.evaluate();
    const Outputs found = run(p, 1);
    const auto bound = dtype == DType::bf16 ? 2e-2 : 1e-4;
    for (std::int64_t i = 0; i < found.out.size(); ++i) {
      EXPECT_NEAR(found.out.at(i), p.out_d[static_cast<std::size_t>(i)], bound);
      EXPECT_NEAR(found.dv.at(i), p.dv_d[static_cast<std::size_t>(i)], bound * 8);
    }
  }
}

TEST(Attention, ReferenceGradientIsTheFiniteDifference) {
  Problem p({2, 9, 9, 4, 2, 6, 5, true, 2});
  const auto dq = p.dq_d, dk = p.dk_d, dv = p.dv_d;
  const auto check = [&](std::vector<double>& x, const std::vector<double>& gradient) {
    const auto direction = doubles(Array::normal(DType::f32, static_cast<std::int64_t>(x.size()), 7));
    const auto loss_at = [&](double step) {
      const auto kept = x;
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += step * direction[i];
      p.evaluate();
      x = kept;
      double sum = 0;
      for (std::size_t i = 0; i < p.out_d.size(); ++i) sum += p.out_d[i] * p.dout_d[i];
      return sum;
    };
    double expected = 0;
    for (std::size_t i = 0; i < x.size(); ++i) expected += gradient[i] * direction[i];
    const double step = 1e-5;
    EXPECT_NEAR((loss_at(step) - loss_at(-step)) / (2 * step), expected, 1e-7 * (1 + std::abs(expected)));
  };
  check(p.q_d, dq);
  check(p.k_d, dk);
  check(p.v_d, dv);
}

}  // namespace
}  // namespace switchyard
