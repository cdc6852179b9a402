// Hopper's kernels of attention on the emulator: right, and with the same bits in every order of threads and
// whenever copies and products end. Selftest's cases hold them to the reference's bounds.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention/attention_problem.h"
#include "kernels/attention/reference/attention_reference.h"
#include "emulator/testing.h"

namespace switchyard::gpu {
namespace {

using emulator::Order;
using emulator::Pace;
using emulator::Timing;

struct HopperShape {
  std::string name;
  AttentionSpec spec;
  int documents = 0;            // packed into each sequence of the batch; 0: one, and no segments are given
  std::int64_t keys_ahead = 0;  // by which keys begin before queries, where places are given
};

std::vector<HopperShape> hopper_shapes() {
  const auto spec = [](std::int64_t batch, std::int64_t queries, std::int64_t keys, std::int64_t heads,
                       std::int64_t kv_heads, std::int64_t qk, std::int64_t v, bool causal = true,
                       KeyWindow seen = {}) {
    AttentionSpec s{batch, queries, keys, heads, kv_heads, qk, v, 0.2f, causal, DType::bf16};
    s.seen = seen;
    return s;
  };
  return {
      {"64", spec(1, 300, 300, 4, 2, 64, 64)},
      {"64, all keys", spec(2, 65, 97, 2, 1, 64, 64, false)},
      {"96", spec(1, 129, 129, 1, 1, 96, 96)},
      {"128", spec(2, 300, 300, 2, 1, 128, 128)},
      {"128, a window", spec(1, 400, 400, 1, 1, 128, 128, true, {100, 0})},
      {"128, chunks", spec(1, 400, 400, 1, 1, 128, 128, true, {0, 150})},
      {"128, packed", spec(2, 300, 300, 1, 1, 128, 128), 3},
      {"128, later queries", spec(1, 130, 300, 2, 1, 128, 128), 0, 170},
      {"192 x 128", spec(1, 200, 200, 2, 2, 192, 128)},
      {"256", spec(1, 150, 150, 2, 1, 256, 256)},
      {"one query", spec(1, 1, 64, 1, 1, 64, 64, false)},
      {"queries before all keys", spec(1, 70, 40, 1, 1, 64, 64), 0, -40},
  };
}

std::vector<bfloat16> normal_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<bfloat16> values(static_cast<std::size_t>(count));
  for (bfloat16& value : values) value = bfloat16(normal(random));
  return values;
}

// Operands of a shape, and what the reference makes of them.
class HopperProblem {
 public:
  explicit HopperProblem(const HopperShape& shape)
      : s(shape.spec),
        q(normal_values(s.batch * s.q_length * s.heads * s.qk_dim, 1)),
        k(normal_values(s.batch * s.kv_length * s.kv_heads * s.qk_dim, 2)),
        v(normal_values(s.batch * s.kv_length * s.kv_heads * s.v_dim, 3)),
        out(static_cast<std::size_t>(s.batch * s.q_length * s.heads * s.v_dim)),
        lse(static_cast<std::size_t>(s.batch * s.heads * s.q_length)),
        top(lse.size()) {
    const auto places = [&](std::int64_t length, std::int64_t first, std::vector<std::int32_t>& index,
                            std::vector<std::int32_t>& segment) {
      for (std::int64_t i = 0; i < s.batch * length; ++i) {
        const std::int64_t at = i % length, documents = shape.documents > 0 ? shape.documents : 1;
        index.push_back(static_cast<std::int32_t>(first + at));
        segment.push_back(static_cast<std::int32_t>(at * documents / length));
      }
    };
    places(s.q_length, shape.keys_ahead, q_index_, q_segment_);
    places(s.kv_length, 0, kv_index_, kv_segment_);
    if (shape.documents > 0) s.q_segment = q_segment_.data(), s.kv_segment = kv_segment_.data();
    if (shape.keys_ahead != 0) s.q_index = q_index_.data(), s.kv_index = kv_index_.data();
    reference::attention(s, q.data(), k.data(), v.data(), out.data(), lse.data(), top.data());
  }

  AttentionArgs args(std::vector<bfloat16>& to, std::vector<float>& to_lse,
                     std::vector<float>& to_top) const {
    AttentionArgs made = reference::attention_args(s, q.data(), k.data(), v.data(), to.data(), to_lse.data());
    made.q = emulator::on_gpu(q, made.q.shape());
    made.top = TensorView::of_host(to_top.data(), {s.batch, s.heads, s.q_length});
    return made;
  }

  AttentionSpec s;
  std::vector<bfloat16> q, k, v, out;
  std::vector<float> lse, top;

 private:
  std::vector<std::int32_t> q_index_, kv_index_, q_segment_, kv_segment_;
};

// Calls body() late and early, in several orders of threads, and once with proxies checked.
template <typename Body>
void in_some_timings(const Body& body) {
  for (const Pace pace : {Pace::late, Pace::early, Pace::random}) {
    const Timing now(pace == Pace::early ? Order::reverse : Order::random, pace);
    body();
  }
  const Timing now(Order::forward, Pace::late, true);
  body();
}

bool have_same_bits(const std::vector<bfloat16>& x, const std::vector<bfloat16>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(bfloat16)) == 0;
}

void expect_near(const std::vector<float>& found, const std::vector<float>& expected, const char* what) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isinf(expected[i]))
      ASSERT_EQ(found[i], expected[i]) << what << ' ' << i;
    else
      ASSERT_NEAR(found[i], expected[i], 2e-5) << what << ' ' << i;
  }
}
// Weights are rounded to 2^-9 of them, and so is the result.
void expect_near(const std::vector<bfloat16>& found, const std::vector<bfloat16>& expected, double bound,
                 const char* what) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double wanted = static_cast<float>(expected[i]);
    ASSERT_NEAR(static_cast<float>(found[i]), wanted, bound + std::abs(wanted) * 0x1p-7) << what << ' ' << i;
  }
}

TEST(HopperAttention, IsTheReferencesInEveryTiming) {
  for (const HopperShape& shape : hopper_shapes()) {
    SCOPED_TRACE(shape.name);
    const HopperProblem p(shape);
    std::vector<bfloat16> first;
    in_some_timings([&] {
      std::vector<bfloat16> out(p.out.size(), bfloat16(std::nanf("")));
      std::vector<float> lse(p.lse.size(), std::nanf("")), top(p.top.size(), std::nanf(""));
      const AttentionArgs args = p.args(out, lse, top);
      ASSERT_EQ(hopper_attention_refuses(args), nullptr);
      hopper_attention(args);
      expect_near(lse, p.lse, "lse");
      expect_near(top, p.top, "top");
      expect_near(out, p.out, 0.02, "out");
      if (first.empty()) first = out;
      EXPECT_TRUE(have_same_bits(out, first));
    });
  }
}

// The gradients by a function of the table.
struct Gradients {
  explicit Gradients(const HopperProblem& p)
      : dq(p.q.size(), bfloat16(std::nanf(""))),
        dk(p.k.size(), bfloat16(std::nanf(""))),
        dv(p.v.size(), bfloat16(std::nanf(""))) {}
  std::vector<bfloat16> dq, dk, dv;
};

TEST(HopperAttention, GradientsAreTheReferencesInEveryTiming) {
  for (const HopperShape& shape : hopper_shapes()) {
    SCOPED_TRACE(shape.name);
    HopperProblem p(shape);
    const std::vector<bfloat16> dout = normal_values(p.s.batch * p.s.q_length * p.s.heads * p.s.v_dim, 4);
    Gradients expected(p);
    reference::attention_backward(p.s, p.q.data(), p.k.data(), p.v.data(), p.out.data(), p.lse.data(),
                                  dout.data(), expected.dq.data(), expected.dk.data(), expected.dv.data());
    std::vector<Gradients> first;
    in_some_timings([&] {
      Gradients found(p);
      std::vector<float> top(p.top.size());
      const auto view = [](std::vector<bfloat16>& x, const Shape& dims) {
        return TensorView::of_host(DType::bf16, x.data(), dims);
      };
      AttentionBackwardArgs args;
      args.forward = p.args(p.out, p.lse, top);
      args.dout = TensorView::of_host(DType::bf16, dout.data(), args.forward.out.shape());
      args.dq = emulator::on_gpu(found.dq, args.forward.q.shape());
      args.dk = view(found.dk, args.forward.k.shape());
      args.dv = view(found.dv, args.forward.v.shape());
      ASSERT_EQ(hopper_attention_backward_refuses(args), nullptr);
      hopper_attention_backward(args);
      expect_near(found.dv, expected.dv, 0.03, "dv");
      expect_near(found.dk, expected.dk, 0.03, "dk");
      expect_near(found.dq, expected.dq, 0.03, "dq");
      if (first.empty()) first.push_back(found);
      EXPECT_TRUE(have_same_bits(found.dq, first[0].dq) && have_same_bits(found.dk, first[0].dk) &&
                  have_same_bits(found.dv, first[0].dv));
    });
  }
}

}  // namespace
}  // namespace switchyard::gpu
