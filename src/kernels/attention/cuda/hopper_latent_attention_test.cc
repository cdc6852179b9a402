// Attention to latents on Hopper, on the emulator: that of the reference, and with the same bits in every
// order of threads and whenever copies and products end.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
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

constexpr std::int64_t kWidth = 576, kValues = 512;

struct LatentCase {
  std::string name;
  std::int64_t heads, queries;
  std::vector<std::int32_t> lengths;  // keys of each sequence, its queries' among them
  std::int64_t width = kWidth, values = kValues;
  bool causal = true;
  KeyWindow seen = {};
  bool in_slots = true;  // of a cache; else keys of their own, all of one length
  int segments = 0;      // with places of keys, which are given then
};

std::vector<LatentCase> latent_cases() {
  return {
      {"several texts of one head", 1, 1, {1, 63, 64, 65, 200, 333}},
      {"a tile of heads", 64, 1, {1, 65, 200}},
      {"two tiles of heads", 128, 1, {63, 130}},
      {"some tokens of a step", 16, 5, {64, 333, 5, 0}},
      {"a piece of a prompt", 16, 64, {65, 200}},
      {"a piece of one head", 1, 130, {333, 130}},
      {"heads that fill no tile", 20, 7, {100, 7}},
      {"a window", 16, 64, {200}, kWidth, kValues, true, {50, 0}},
      {"chunks", 16, 5, {200, 130}, kWidth, kValues, true, {0, 40}},
      {"all keys", 16, 5, {200, 64}, kWidth, kValues, false},
      {"narrow", 4, 20, {90}, 24, 16},
      {"keys of their own", 16, 20, {100, 100}, kWidth, kValues, true, {}, false},
      {"segments", 2, 40, {150, 150}, kWidth, kValues, true, {}, false, 3},
  };
}

std::vector<bfloat16> normal_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<bfloat16> values(static_cast<std::size_t>(count));
  for (bfloat16& value : values) value = bfloat16(normal(random));
  return values;
}

// Operands of a case, and what the reference makes of them.
class LatentProblem {
 public:
  explicit LatentProblem(const LatentCase& c)
      : s{.batch = std::ssize(c.lengths),
          .q_length = c.queries,
          .kv_length = *std::ranges::max_element(c.lengths),
          .heads = c.heads,
          .kv_heads = 1,
          .qk_dim = c.width,
          .v_dim = c.values,
          .scale = c.width > 64 ? 0.06f : 0.2f,
          .causal = c.causal,
          .dtype = DType::bf16,
          .seen = c.seen,
          .value_row = c.width},
        lengths(c.lengths),
        slot_count(c.in_slots ? s.batch + 2 : s.batch) {
    if (c.in_slots) s.kv_length += 70;  // more room than any has
    q = normal_values(s.batch * s.q_length * s.heads * s.qk_dim, 1);
    k = normal_values(slot_count * s.kv_length * s.qk_dim, 2);
    const bfloat16 nothing(std::nanf(""));
    for (std::int64_t b = 0; b < s.batch; ++b) {
      const std::int64_t slot = c.in_slots ? slot_count - 1 - b : b,
                         length = lengths[static_cast<std::size_t>(b)];
      slots.push_back(static_cast<std::int32_t>(slot));
      std::fill_n(k.begin() + (slot * s.kv_length + length) * s.qk_dim, (s.kv_length - length) * s.qk_dim,
                  nothing);  // memory that nobody has written
      for (std::int64_t i = 0; i < s.q_length; ++i)
        q_index.push_back(static_cast<std::int32_t>(length - s.q_length + i));
    }
    s.q_index = q_index.data();
    if (c.in_slots) s.slots = slots.data(), s.lengths = lengths.data();
    if (c.segments > 0) give_segments(c.segments);
    out.resize(static_cast<std::size_t>(s.batch * s.q_length * s.heads * s.v_dim));
    lse.resize(static_cast<std::size_t>(s.batch * s.heads * s.q_length));
    top.resize(lse.size());
    reference::attention(s, q.data(), k.data(), k.data(), out.data(), lse.data(), top.data());
  }

  AttentionArgs args(std::vector<bfloat16>& to, std::vector<float>& to_lse,
                     std::vector<float>& to_top) const {
    const Shape queries{s.batch, s.q_length}, keys{s.batch, s.kv_length}, batch{s.batch},
        rows{s.batch, s.heads, s.q_length};
    AttentionArgs a;
    a.q = emulator::on_gpu(q, {s.batch, s.q_length, s.heads, s.qk_dim});
    a.k = emulator::on_gpu(k, {slot_count, s.kv_length, 1, s.qk_dim});
    a.v = a.k.slice(3, 0, s.v_dim);
    a.q_index = TensorView::of_host(s.q_index, queries);
    a.kv_index = TensorView::of_host(s.kv_index, keys);
    a.q_segment = TensorView::of_host(s.q_segment, queries);
    a.kv_segment = TensorView::of_host(s.kv_segment, keys);
    a.scale = s.scale;
    a.causal = s.causal;
    a.window = s.seen.window;
    a.chunk = s.seen.chunk;
    a.slots = TensorView::of_host(s.slots, batch);
    a.lengths = TensorView::of_host(s.lengths, batch);
    a.out = emulator::on_gpu(to, {s.batch, s.q_length, s.heads, s.v_dim});
    a.lse = TensorView::of_host(to_lse.data(), rows);
    a.top = TensorView::of_host(to_top.data(), rows);
    return a;
  }

  AttentionSpec s;
  std::vector<std::int32_t> lengths, slots, q_index, kv_index, q_segment, kv_segment;
  std::int64_t slot_count;
  std::vector<bfloat16> q, k, out;
  std::vector<float> lse, top;

 private:
  void give_segments(int segments) {
    const auto fill = [&](std::int64_t length, std::vector<std::int32_t>& of) {
      for (std::int64_t i = 0; i < s.batch * length; ++i)
        of.push_back(static_cast<std::int32_t>(i % length * segments / length));
    };
    fill(s.q_length, q_segment);
    fill(s.kv_length, kv_segment);
    for (std::int64_t i = 0; i < s.batch * s.kv_length; ++i)
      kv_index.push_back(static_cast<std::int32_t>(i % s.kv_length));
    s.q_segment = q_segment.data();
    s.kv_segment = kv_segment.data();
    s.kv_index = kv_index.data();
  }
};

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
void expect_near(const std::vector<bfloat16>& found, const std::vector<bfloat16>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double wanted = static_cast<float>(expected[i]);
    ASSERT_NEAR(static_cast<float>(found[i]), wanted, 0.02 + std::abs(wanted) * 0x1p-7) << "out " << i;
  }
}

TEST(HopperLatentAttention, IsTheReferencesInEveryTiming) {
  for (const LatentCase& c : latent_cases()) {
    SCOPED_TRACE(c.name);
    const LatentProblem p(c);
    std::vector<bfloat16> first;
    const auto attend = [&] {
      std::vector<bfloat16> out(p.out.size(), bfloat16(std::nanf("")));
      std::vector<float> lse(p.lse.size(), std::nanf("")), top(p.top.size(), std::nanf(""));
      const AttentionArgs args = p.args(out, lse, top);
      ASSERT_EQ(hopper_latent_refuses(args), nullptr);
      hopper_latent_attention(args);
      expect_near(lse, p.lse, "lse");
      expect_near(top, p.top, "top");
      expect_near(out, p.out);
      if (first.empty()) first = out;
      EXPECT_EQ(std::memcmp(out.data(), first.data(), out.size() * sizeof(bfloat16)), 0);
    };
    emulator::in_all_timings(attend);
    const Timing now(Order::forward, Pace::late, true);  // with proxies checked
    attend();
  }
}

TEST(HopperLatentAttention, SaysWhatItRefuses) {
  const LatentProblem p({"", 2, 3, {10}});
  std::vector<bfloat16> out(p.out.size());
  std::vector<float> lse(p.lse.size()), top(p.top.size());
  const AttentionArgs taken = p.args(out, lse, top);
  EXPECT_EQ(hopper_latent_refuses(taken), nullptr);
  EXPECT_STREQ(parts_refuse(taken), "keys are in slots of a cache");
  AttentionArgs args = taken;
  args.v = emulator::on_gpu(p.q, {1, 1, 1, 8});
  EXPECT_STREQ(hopper_latent_refuses(args), "values are no part of keys");
  args = taken;
  args.v = args.k;
  EXPECT_STREQ(hopper_latent_refuses(args), "keys are wider than 576, or their values than 512");
}

}  // namespace
}  // namespace switchyard::gpu
