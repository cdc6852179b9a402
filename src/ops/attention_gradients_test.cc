// Ops of attention: gradients against finite differences, and the same values on every mesh.
#include "ops/attention.h"
#include "ops/einsum.h"
#include "ops/gradient_testing.h"
#include "ops/kv_heads.h"
#include "ops/sequence_balance.h"

namespace switchyard {
namespace {

using namespace autograd_test;

TEST(Gradients, RopeBothLayoutsWithOffset) {
  const std::vector<double> frequencies{1.0, 0.3, 0.05};
  const Tensor positions = random_integers({2, 5}, 3, 0, 20);
  for (bool interleaved : {false, true}) {
    auto function = [&](Context& c, std::span<const Array> in) {
      const RopeTables tables = rope_tables(c, in[1], frequencies, 1.3);
      return rope(c, in[0], tables, 2, interleaved);
    };
    check_gradients({.function = function,
                     .inputs = {{random_tensor({2, 5, 4, 9}, 4), {{{{"data"}, {}, {"tensor"}, {}}, {}}}},
                                {positions, {{{{"data"}, {}}, {}}}}},
                     .meshes = {kData2Tensor2}});
    check_gradients({.function = function,
                     .inputs = {{random_tensor({2, 5, 9}, 4), {{{{"data"}, {}, {}}, {}}}},
                                {positions, {{{{"data"}, {}}, {}}}}},
                     .meshes = {kData2Tensor2}});
  }
}

TEST(Gradients, FactorsOfPositions) {
  const std::vector<double> angles{0, 0, 0};
  const Tensor positions = random_integers({2, 6}, 3, 0, 40);
  auto function = [&](Context& c, std::span<const Array> in) {
    return rope(c, in[0], rope_tables(c, in[1], angles, 1, {0.7, 8}), 0, true);
  };
  check_gradients({.function = function,
                   .inputs = {{random_tensor({2, 6, 4, 6}, 4),
                               {{{{"data"}, {}, {"tensor"}, {}}, {}}, {{{"data"}, {"context"}, {}, {}}, {}}}},
                              {positions, {{{{"data"}, {}}, {}}, {{{"data"}, {"context"}}, {}}}}},
                   .meshes = {kData2Tensor2, Mesh({{"data", 2}, {"context", 3}})}});
}

Tensor packed_segments() {
  const std::int32_t ids[] = {1, 1, 1, 2, 2, 0, 1, 1, 2, 2, 3, 3};
  return Tensor::of<std::int32_t>({2, 6}, ids);
}

TEST(Gradients, AttentionWithGroupedHeads) {
  auto function = [](Context& c, std::span<const Array> in) {
    return attention(c, in[0], in[1], in[2], in[3], {0.4f, true});
  };
  const Sharding split{{{"data"}, {}, {"tensor"}, {}}, {}}, batch{{{"data"}, {}, {}, {}}, {}},
      tokens{{{"data"}, {}}, {}};
  const Sharding heads4{{{}, {}, {"tensor"}, {}}, {}};
  const Mesh two_axes({{"tensor", 2}, {"tensor_sequence", 4}});
  const Sharding q8{{{}, {}, {"tensor", "tensor_sequence"}, {}}, {}}, kv2{{{}, {}, {"tensor"}, {}}, {}};
  for (std::int64_t kv : {1, 2, 4, 8}) {
    const Sharding k_data = kv % 2 == 0 ? split : batch, k_tensor = kv % 4 == 0 ? heads4 : replicated(4);
    const Sharding k_two = kv % 2 == 0 ? kv2 : replicated(4);
    check_gradients({.function = function,
                     .inputs = {{random_tensor({2, 6, 8, 5}, 1), {split, split, heads4, q8}},
                                {random_tensor({2, 6, kv, 5}, 2), {k_data, batch, k_tensor, k_two}},
                                {random_tensor({2, 6, kv, 3}, 3), {k_data, batch, k_tensor, k_two}},
                                {packed_segments(), {tokens, tokens}}},
                     .meshes = {kData2Tensor2, kData2Tensor2, kTensor4, two_axes}});
  }
}

TEST(Gradients, AttentionOverASplitSequence) {
  const Sharding split{{{}, {"context"}, {}, {}}, {}}, tokens{{{}, {"context"}}, {}};
  const Sharding both{{{"data"}, {"context"}, {}, {}}, {}}, both_tokens{{{"data"}, {"context"}}, {}};
  const Sharding heads{{{}, {"context"}, {"tensor"}, {}}, {}};
  for (bool balanced : {false, true}) {
    auto function = [&](Context& c, std::span<const Array> in) {
      return attention(c, in[0], in[1], in[2], in[3], {0.4f, balanced});
    };
    check_gradients({.function = function,
                     .inputs = {{random_tensor({2, 12, 4, 5}, 1), {split, split, both, heads}},
                                {random_tensor({2, 12, 2, 5}, 2), {split, replicated(4), both, heads}},
                                {random_tensor({2, 12, 2, 3}, 3), {split, split, both, heads}},
                                {Tensor::of<std::int32_t>(
                                     {2, 12}, std::vector<std::int32_t>{1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 0,
                                                                        1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3}),
                                 {tokens, tokens, both_tokens, tokens}}},
                     .meshes = {Mesh({{"context", 2}}), Mesh({{"context", 3}}),
                                Mesh({{"data", 2}, {"context", 6}}), Mesh({{"context", 4}, {"tensor", 2}})}});
  }
}

TEST(SequenceBalance, GivesEveryRankAnEarlyAndALateChunk) {
  const Mesh mesh({{"context", 3}});
  Tensor x(DType::i32, {2, 12, 1});
  for (std::int64_t i = 0; i < x.size(); ++i) x.data<std::int32_t>()[i] = static_cast<std::int32_t>(i);
  on_mesh(mesh, [&](Context& c) {
    const Array in = leaf(c, x, {{{}, {"context"}, {}}, {}});
    ASSERT_TRUE(can_balance_sequence(c, in));
    const Array balanced = balance_sequence(c, in);
    const auto [early, late] = balanced_halves(c, balanced.info());
    EXPECT_EQ(early, 2 * c.rank);
    EXPECT_EQ(late, 2 * (5 - c.rank));
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t s = 0; s < 4; ++s)
        EXPECT_EQ(balanced.tensor().data<std::int32_t>()[b * 4 + s],
                  b * 12 + (s < 2 ? early + s : late + s - 2));
    }
    EXPECT_TRUE(identical(unbalance_sequence(c, balanced).tensor(), in.tensor()));
  });
}

TEST(Gradients, AttentionWithGroupsThatRanksCut) {  // 6 query heads on 3 ranks, 2 key heads
  const Sharding heads{{{}, {}, {"tensor"}, {}}, {}};
  check_gradients({.function =
                       [](Context& c, std::span<const Array> in) {
                         return attention(c, in[0], in[1], in[2], in[3], {0.4f, true});
                       },
                   .inputs = {{random_tensor({2, 6, 6, 5}, 1), {heads}},
                              {random_tensor({2, 6, 2, 5}, 2)},
                              {random_tensor({2, 6, 2, 3}, 3)},
                              {packed_segments()}},
                   .meshes = {Mesh({{"tensor", 3}})}});
}

TEST(Gradients, SpreadHeads) {  // 2 key heads on 4 parts: each head is there twice
  for (const Axes& axes : {Axes{"data", "tensor"}, Axes{"tensor", "data"}}) {
    check_gradients({.function =
                         [axes](Context& c, std::span<const Array> in) {
                           const bool one = c.mesh->size() == 1;
                           const Array heads = one ? in[0] : spread_heads(c, in[0], axes);
                           Tensor times(DType::f32, {heads.shape()[1]});
                           std::ranges::fill(times.span<float>(), one ? 2.0f : 1.0f);
                           const Array leaf = make_leaf(times, times.shape(), replicated(1), false);
                           return einsum(c, "MND,N->MD", heads, leaf);
                         },
                     .inputs = {{random_tensor({4, 2, 3}, 1),
                                 {replicated(3), {{{"data"}, {}, {}}, {}}, {{{}, {"tensor"}, {}}, {}}}}},
                     .meshes = {kData2Tensor2}});
  }
  on_mesh(Mesh({{"tensor", 4}}), [](Context& c) {
    const Tensor whole = random_tensor({3, 2, 5}, 1);
    const Tensor part =
        spread_heads(c, make_leaf(whole, whole.shape(), replicated(3), false), {"tensor"}).tensor();
    ASSERT_EQ(part.shape(), (Shape{3, 1, 5}));
    for (std::int64_t m = 0; m < 3; ++m) {
      for (std::int64_t d = 0; d < 5; ++d)
        EXPECT_EQ(part.data<float>()[m * 5 + d], whole.data<float>()[(m * 2 + c.rank / 2) * 5 + d]);
    }
  });
}

}  // namespace
}  // namespace switchyard
