// Ops on memory that only kernels, copies and collectives can reach (core/device.h) give the same bits as on
// memory of the host.
#include "ops/attention.h"
#include "ops/attention_cache.h"
#include "ops/fenced_testing.h"
#include "ops/norm.h"

namespace switchyard {
namespace {

using namespace autograd_test;

TEST(Fenced, RmsNormWholeAndSplit) {
  const auto function = [](Context& c, std::span<const Array> in) {
    return rms_norm(c, in[0], in[1], 1e-3f);
  };
  expect_same_bits(Mesh(), function, {{random_tensor({4, 3, 8}, 1)}, {random_tensor({8}, 2)}}, 2);
  expect_same_bits(Mesh({{"tensor", 2}}), function,
                   {{random_tensor({4, 3, 8}, 1), {{{{}, {}, {"tensor"}}, {}}}},
                    {random_tensor({8}, 2), {{{{"tensor"}}, {}}}}},
                   2);
}

TEST(Fenced, RopeOfAPartOfEveryHead) {
  const std::vector<double> frequencies{1.0, 0.3, 0.05};
  expect_same_bits(
      Mesh(),
      [&](Context& c, std::span<const Array> in) {
        return rope(c, in[0], rope_tables(c, in[1], frequencies, 1.3), 2, true);
      },
      {{random_tensor({2, 5, 4, 9}, 4)}, {random_integers({2, 5}, 3, 0, 20)}}, 1);
}

// Heads of keys that ranks share unevenly, and a sequence that is split.
TEST(Fenced, AttentionWithGroupedHeadsAndSplitSequence) {
  const auto function = [](Context& c, std::span<const Array> in) {
    return attention(c, in[0], in[1], in[2], in[3], {0.4f, true});
  };
  const Tensor q = random_tensor({2, 8, 6, 5}, 1), k = random_tensor({2, 8, 2, 5}, 2),
               v = random_tensor({2, 8, 2, 3}, 3), segments = random_integers({2, 8}, 4, 1, 2);
  expect_same_bits(Mesh(), function, {{q}, {k}, {v}, {segments}}, 3);
  const Sharding heads{{{}, {}, {"tensor"}, {}}, {}}, sequence{{{}, {"context"}, {}, {}}, {}};
  expect_same_bits(Mesh({{"tensor", 3}}), function, {{q, {heads}}, {k}, {v}, {segments}}, 3);
  expect_same_bits(Mesh({{"context", 2}}), function,
                   {{q, {sequence}}, {k, {sequence}}, {v, {sequence}}, {segments}}, 3);
}

TEST(Fenced, AttentionWithAWindowAndSinks) {
  const auto function = [](Context& c, std::span<const Array> in) {
    return attention(c, in[0], in[1], in[2], in[3], {0.4f, true, 3, 6}, &in[4]);
  };
  const Tensor q = random_tensor({2, 8, 4, 5}, 1), k = random_tensor({2, 8, 2, 5}, 2),
               v = random_tensor({2, 8, 2, 3}, 3), segments = random_integers({2, 8}, 4, 1, 2),
               sinks = random_tensor({4}, 5);
  expect_same_bits(Mesh(), function, {{q}, {k}, {v}, {segments}, {sinks}}, 4);
  const Sharding heads{{{}, {}, {"tensor"}, {}}, {}};
  expect_same_bits(Mesh({{"tensor", 2}}), function, {{q, {heads}}, {k}, {v}, {segments}, {sinks}}, 4);
}

// A prompt of two rows, one of them padded, then a token more of each; and a row that goes on from the
// other's first tokens, beside a row of padding.
TEST(Fenced, AttentionOverTheCache) {
  const std::vector<TestInput> inputs{{random_tensor({2, 4, 4, 5}, 1)}, {random_tensor({2, 4, 2, 5}, 2)},
                                      {random_tensor({2, 4, 2, 3}, 3)}, {random_integers({2, 4}, 4, 0, 4)},
                                      {random_tensor({2, 1, 4, 5}, 5)}, {random_tensor({2, 1, 2, 5}, 6)},
                                      {random_tensor({2, 1, 2, 3}, 7)}, {random_integers({2, 1}, 8, 0, 4)},
                                      {random_tensor({4}, 9)}};
  for (const int variant : {0, 1, 2, 3, 4, 5, 6, 7}) {
    const bool from_other = variant % 2 == 1, int8 = variant % 4 >= 2, forgets = variant >= 4;
    const auto function = [&](Context& c, std::span<const Array> in) {
      const NoGrad no_grad(c);
      LayerCache cache;
      cache.window = {6, forgets ? KeyWindow{2, 0} : KeyWindow{}};
      cache.int8 = int8;
      cache.lengths = {0, 0};
      const std::vector<std::int64_t> rows{1, 0}, tokens{4, 3}, one{1, 1}, some{0, -1}, padded{2, 0};
      cache_append(c, cache, in[0], std::span(&in[1], 1), std::span(&in[2], 1), {in[3], rows, tokens});
      if (from_other) {
        cache_copy_prefix(c, cache, 0, 1, 2);
        cache_append(c, cache, in[0], std::span(&in[1], 1), std::span(&in[2], 1), {in[3], some, padded});
        return attend(c, cache, in[0], {in[3], some, padded}, {0.4f, false, 2, 0}, &in[8]);
      }
      cache_append(c, cache, in[4], std::span(&in[5], 1), std::span(&in[6], 1), {in[7], rows, one});
      return attend(c, cache, in[4], {in[7], rows, one}, {0.4f, false, 2, 0}, &in[8]);
    };
    expect_same_bits(Mesh(), function, inputs, 0);
  }
}

}  // namespace
}  // namespace switchyard
