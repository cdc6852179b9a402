#include "kernels/attention/attention_sinks.h"

#include <gtest/gtest.h>

#include "kernels/attention/reference/attention_reference.h"
#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;

constexpr std::int64_t kBatch = 2, kLength = 70, kHeads = 3, kDim = 9, kValues = 6;
constexpr float kScale = 0.5f;

std::vector<double> in_double(const Array& x) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < x.size(); ++i) result.push_back(static_cast<double>(x.at(i)));
  return result;
}

// x [B,T,N,D] with one more dim, of value `one_more`, and then `more` vectors of zeros before the others.
std::vector<double> extended(const Array& x, std::int64_t dim, double one_more, std::int64_t more,
                             std::int64_t dims_more) {
  std::vector<double> result;
  for (std::int64_t b = 0; b < kBatch; ++b) {
    result.resize(result.size() + static_cast<std::size_t>(more * kHeads * (dim + dims_more)));
    for (std::int64_t i = b * kLength * kHeads; i < (b + 1) * kLength * kHeads; ++i) {
      for (std::int64_t d = 0; d < dim; ++d) result.push_back(static_cast<double>(x.at(i * dim + d)));
      if (dims_more > 0) result.push_back(one_more);
    }
  }
  return result;
}

// The truth: attention with a first key of score sinks[n] (by a dim of its own, in which queries
// are 1) and value 0.
struct WithOneMoreKey {
  std::vector<double> out, lse, dq, dk, dv, dsinks;
};

WithOneMoreKey with_one_more_key(const Array& q, const Array& k, const Array& v, const Array& sinks,
                                 const Array& dout) {
  constexpr std::int64_t kKeys = kLength + 1, kWide = kDim + 1;
  std::vector<std::int32_t> places;
  for (std::int64_t i = 0; i < kBatch * kKeys; ++i)
    places.push_back(static_cast<std::int32_t>(i % kKeys) - 1);
  AttentionSpec args{kBatch, kLength, kKeys, kHeads, kHeads, kWide, kValues, kScale, true};
  args.kv_index = places.data();
  std::vector<double> wide_k = extended(k, kDim, 0, 1, 1);
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t n = 0; n < kHeads; ++n)
      wide_k[static_cast<std::size_t>((b * kKeys * kHeads + n) * kWide + kDim)] =
          static_cast<double>(sinks.at(n) / kScale);
  }
  const std::vector<double> wide_q = extended(q, kDim, 1, 0, 1), wide_v = extended(v, kValues, 0, 1, 0),
                            dout_d = in_double(dout);
  WithOneMoreKey r;
  r.out.resize(dout_d.size());
  r.lse.resize(static_cast<std::size_t>(kBatch * kHeads * kLength));
  std::vector<double> dq(wide_q.size()), dk(wide_k.size()), dv(wide_v.size());
  reference::attention(args, wide_q.data(), wide_k.data(), wide_v.data(), r.out.data(), r.lse.data());
  reference::attention_backward(args, wide_q.data(), wide_k.data(), wide_v.data(), r.out.data(), r.lse.data(),
                                dout_d.data(), dq.data(), dk.data(), dv.data());
  const auto keep = [](const std::vector<double>& x, std::int64_t vectors, std::int64_t skipped,
                       std::int64_t width, std::int64_t kept) {
    std::vector<double> result;
    for (std::int64_t i = 0; i < kBatch * vectors; ++i) {
      if (i % vectors < skipped) continue;
      const auto at = x.begin() + i * width;
      result.insert(result.end(), at, at + kept);
    }
    return result;
  };
  r.dq = keep(dq, kLength * kHeads, 0, kWide, kDim);
  r.dk = keep(dk, kKeys * kHeads, kHeads, kWide, kDim);
  r.dv = keep(dv, kKeys * kHeads, kHeads, kValues, kValues);
  r.dsinks.resize(kHeads);
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t n = 0; n < kHeads; ++n)
      r.dsinks[static_cast<std::size_t>(n)] +=
          dk[static_cast<std::size_t>((b * kKeys * kHeads + n) * kWide + kDim)] / static_cast<double>(kScale);
  }
  return r;
}

void expect_near(const Array& found, const std::vector<double>& expected, double bound, const char* what) {
  ASSERT_TRUE(found.guards_intact()) << what;
  ASSERT_EQ(found.size(), static_cast<std::int64_t>(expected.size())) << what;
  for (std::int64_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found.at(i), expected[static_cast<std::size_t>(i)], bound) << what << " " << i;
}

TEST(AttentionSinks, AreOneMoreKeyInBothPasses) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Array q = Array::normal(dtype, kBatch * kLength * kHeads * kDim, 1),
                k = Array::normal(dtype, q.size(), 2),
                v = Array::normal(dtype, kBatch * kLength * kHeads * kValues, 3),
                dout = Array::normal(dtype, v.size(), 4);
    Array sinks(DType::f32, kHeads);
    for (std::int64_t n = 0; n < kHeads; ++n) sinks.set(n, 2.0f * static_cast<float>(n) - 1);
    const WithOneMoreKey expected = with_one_more_key(q, k, v, sinks, dout);
    const AttentionSpec args{kBatch, kLength, kLength, kHeads, kHeads, kDim, kValues, kScale, true, dtype};
    std::vector<Array> first;
    for (const int threads : {1, 3, 8}) {
      ThreadPool pool(threads);
      Array out(dtype, v.size()), lse(DType::f32, kBatch * kHeads * kLength), dq(dtype, q.size()),
          dk(dtype, k.size()), dv(dtype, v.size()), dsinks(DType::f32, kHeads);
      const AttentionArgs forward =
          reference::attention_args(args, q.data(), k.data(), v.data(), out.data(), lse.floats());
      attention(pool, forward);
      apply_sinks(pool, {sinks.view(), forward.out, forward.lse});
      attention_backward(pool, {forward, dout.view(forward.out.shape()), dq.view(forward.q.shape()),
                                dk.view(forward.k.shape()), dv.view(forward.v.shape())});
      sink_gradients(pool, {.sinks = sinks.view(),
                            .out = forward.out,
                            .dout = dout.view(forward.out.shape()),
                            .lse = forward.lse,
                            .dsinks = dsinks.view()});
      const double bound = dtype == DType::bf16 ? 6e-2 : 5e-5;
      expect_near(out, expected.out, bound, "out");
      expect_near(lse, expected.lse, 1e-5, "lse");
      expect_near(dq, expected.dq, bound, "dq");
      expect_near(dk, expected.dk, 2 * bound, "dk");
      expect_near(dv, expected.dv, 2 * bound, "dv");
      expect_near(dsinks, expected.dsinks, dtype == DType::bf16 ? 0.1 : 2e-4, "dsinks");
      if (threads == 1) first = {out, lse, dsinks};
      EXPECT_EQ(out, first[0]);
      EXPECT_EQ(lse, first[1]);
      EXPECT_EQ(dsinks, first[2]);
    }
  }
}

TEST(AttentionSinks, FarFromTheScoresAndWithoutKeys) {
  ThreadPool pool(1);
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const float sinks[] = {1000, -1000, 5, 5};
  Array out(DType::f32, 4), lse(DType::f32, 4);
  const float before[] = {2, 2, kNone, std::numeric_limits<float>::quiet_NaN()};
  for (std::int64_t i = 0; i < 4; ++i) out.set(i, i == 2 ? 0.0f : 3.0f), lse.set(i, before[i]);
  const TensorView heads = TensorView::of_host(sinks, {4});
  apply_sinks(pool, {heads, out.view({1, 1, 4, 1}), lse.view({1, 4, 1})});
  EXPECT_EQ(out.at(0), 0);
  EXPECT_EQ(lse.at(0), 1000);
  EXPECT_EQ(out.at(1), 3);
  EXPECT_EQ(lse.at(1), 2);
  EXPECT_EQ(out.at(2), 0);
  EXPECT_EQ(lse.at(2), 5);
  EXPECT_TRUE(std::isnan(out.at(3)) && std::isnan(lse.at(3)));
  Array dsinks(DType::f32, 4), dout(DType::f32, 4);
  for (std::int64_t i = 0; i < 4; ++i) dout.set(i, 1);
  sink_gradients(
      pool, {heads, out.view({1, 1, 4, 1}), dout.view({1, 1, 4, 1}), lse.view({1, 4, 1}), dsinks.view()});
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(dsinks.at(i), 0) << i;
  EXPECT_TRUE(std::isnan(dsinks.at(3)));
}

}  // namespace
}  // namespace switchyard
