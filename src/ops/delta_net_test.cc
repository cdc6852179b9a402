// Ops of the gated delta net: gradients against finite differences, equal values on every mesh and for every
// chunk length, and generation against one call with all tokens.
#include "ops/delta_net.h"

#include "kernels/pointwise/strided_copy.h"
#include "ops/basic.h"
#include "ops/fenced_testing.h"
#include "ops/gradient_testing.h"
#include "ops/norm.h"
#include "ops/output_gate.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

using namespace autograd_test;

Tensor two_rows_of_segments() {
  const std::int32_t ids[] = {1, 1, 1, 1, 2, 2, 2, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  return Tensor::of<std::int32_t>({2, 8}, ids);
}

// Numbers between nearly none and nearly all, as decays and strengths are.
Tensor of_each(const Tensor& x, float (*function)(float)) {
  const Tensor y = x.clone();
  for (float& v : y.span<float>()) v = function(v);
  return y;
}
Tensor log_decays(const Shape& shape, std::uint32_t seed) {
  return of_each(random_tensor(shape, seed), [](float x) { return -std::exp(x - 1); });
}
Tensor strengths(const Shape& shape, std::uint32_t seed) {
  return of_each(random_tensor(shape, seed), [](float x) { return 1 / (1 + std::exp(-x)); });
}

const Sharding kHeads4{{{}, {}, {"tensor"}, {}}, {}}, kBoth4{{{"data"}, {}, {"tensor"}, {}}, {}},
    kRows4{{{"data"}, {}, {}, {}}, {}}, kHeads3{{{}, {}, {"tensor"}}, {}},
    kBoth3{{{"data"}, {}, {"tensor"}}, {}}, kRows2{{{"data"}, {}}, {}};

TEST(DeltaNet, ConvolutionWithinSegments) {
  check_gradients(
      {.function = [](Context& c, std::span<const Array> in) { return causal_conv(c, in[0], in[1], in[2]); },
       .inputs = {{random_tensor({2, 8, 4, 3}, 1), {kBoth4, kHeads4, kRows4}},
                  {random_tensor({4, 3, 4}, 2), {{{{"tensor"}, {}, {}}, {}}, replicated(3), replicated(3)}},
                  {two_rows_of_segments(), {kRows2}}},
       .meshes = {kData2Tensor2, kTensor4, kData2Tensor2}});
}

TEST(DeltaNet, Gates) {
  const auto sum_of = [](Context& c, std::span<const Array> in) {
    const DeltaGates gates = delta_gates(c, in[0], in[1], in[2], in[3]);
    return add(c, gates.g, scale(c, gates.beta, 0.5f));
  };
  check_gradients({.function = sum_of,
                   .inputs = {{random_tensor({2, 3, 4}, 1), {kBoth3, kHeads3}},
                              {random_tensor({2, 3, 4}, 2), {kBoth3, kHeads3}},
                              {random_tensor({4}, 3), {{{{"tensor"}}, {}}, replicated(1)}},
                              {random_tensor({4}, 4)}},
                   .meshes = {kData2Tensor2, kTensor4}});
}

GradientCase rule_case(std::int64_t key_heads, bool unit_vectors, std::int64_t chunk) {
  const Shape numbers{2, 8, 4};
  const bool split2 = key_heads % 2 == 0, split4 = key_heads % 4 == 0;
  return {.function =
              [=](Context& c, std::span<const Array> in) {
                return gated_delta(c, in[0], in[1], in[2], {in[3], in[4]}, in[5],
                                   {.chunk = chunk, .unit_vectors = unit_vectors, .scale = 0.6f});
              },
          .inputs = {{random_tensor({2, 8, key_heads, 5}, 1),
                      {split2 ? kBoth4 : kRows4, split4 ? kHeads4 : replicated(4), kRows4}},
                     {random_tensor({2, 8, key_heads, 5}, 2),
                      {split2 ? kBoth4 : kRows4, split4 ? kHeads4 : replicated(4), kRows4}},
                     {random_tensor({2, 8, 4, 3}, 3), {kBoth4, kHeads4, kRows4}},
                     {log_decays(numbers, 4), {kBoth3, kHeads3, {{{"data"}, {}, {}}, {}}}},
                     {strengths(numbers, 5), {kBoth3, kHeads3, {{{"data"}, {}, {}}, {}}}},
                     {two_rows_of_segments(), {kRows2, replicated(2), kRows2}}},
          .meshes = {kData2Tensor2, kTensor4, kData2Tensor2}};
}

TEST(DeltaNet, RuleWithinSegments) {
  for (const std::int64_t key_heads : {1, 2, 4}) check_gradients(rule_case(key_heads, true, 3));
  GradientCase free = rule_case(2, false, 64);
  free.step = 3e-3;
  check_gradients(free);
}

// The chunks are how products are made, not what they are: one token at a time is the rule itself.
TEST(DeltaNet, ChunksOfAnyLengthGiveTheSame) {
  const auto results = [](std::int64_t chunk) {
    const GradientCase test = rule_case(2, true, chunk);
    std::vector<Tensor> values;
    for (const TestInput& input : test.inputs) values.push_back(input.value);
    return evaluate(test, Mesh(), ~std::size_t{0}, values, true);
  };
  const auto alone = results(1);
  for (const std::int64_t chunk : {2, 3, 5, 8, 64}) {
    for (const auto& [name, tensor] : results(chunk))
      EXPECT_TRUE(close(tensor, alone.at(name), 1e-5)) << name << ", chunks of " << chunk;
  }
}

TEST(DeltaNet, GateOfAnOutput) {
  const auto function = [](Context& c, std::span<const Array> in) { return output_gate(c, in[0], in[1]); };
  check_gradients({.function = function,
                   .inputs = {{random_tensor({2, 3, 4, 5}, 1), {kBoth4, kHeads4}},
                              {random_tensor({2, 3, 4, 5}, 2), {kBoth4, kHeads4}}},
                   .meshes = {kData2Tensor2, kTensor4}});
  check_gradients({.function = function,
                   .inputs = {{random_tensor({2, 3, 8}, 1), {kBoth3, kHeads3}},
                              {random_tensor({2, 3, 1}, 2), {{{{"data"}, {}, {}}, {}}, replicated(3)}}},
                   .meshes = {kData2Tensor2, kTensor4}});
}

TEST(DeltaNet, NormsOfOnePlusWeight) {
  const Tensor x = random_tensor({4, 3, 8}, 1), weight = random_tensor({8}, 2);
  check_gradients(
      {.function = [](Context& c, std::span<const Array> in) { return rms_norm(c, in[0], in[1], 1e-3f, 1); },
       .inputs = {{x, {kBoth3, kHeads3}}, {weight, {{{{"tensor"}}, {}}, {{{}}, {}}}}},
       .meshes = {kData2Tensor2, kTensor4}});
  const GradientCase shifted{
      .function = [](Context& c, std::span<const Array> in) { return rms_norm(c, in[0], in[1], 1e-3f, 1); },
      .inputs = {{x}, {weight}}};
  const GradientCase plain{
      .function = [](Context& c, std::span<const Array> in) { return rms_norm(c, in[0], in[1], 1e-3f); },
      .inputs = {{x}, {weight}}};
  const Tensor more = of_each(weight, [](float w) { return 1 + w; });
  EXPECT_TRUE(close(evaluate(shifted, Mesh(), ~std::size_t{0}, {x, weight}, false).at("y"),
                    evaluate(plain, Mesh(), ~std::size_t{0}, {x, more}, false).at("y"), 1e-6));
}

TEST(DeltaNet, OnMemoryThatOnlyKernelsReach) {
  const GradientCase rule = rule_case(2, true, 3);
  expect_same_bits(Mesh(), rule.function, rule.inputs, 5);
  expect_same_bits(
      Mesh(), [](Context& c, std::span<const Array> in) { return causal_conv(c, in[0], in[1], in[2]); },
      {{random_tensor({2, 8, 4, 3}, 1)}, {random_tensor({4, 3, 4}, 2)}, {two_rows_of_segments()}}, 2);
}

// Two rows that come in pieces of unlike lengths, one of them beginning anew or with all that the other
// remembers, and a row of padding.
TEST(DeltaNet, GoesOnFromTheCache) {
  const std::int64_t length = 7;
  const Shape keys{2, length, 2, 5}, values{2, length, 4, 3}, numbers{2, length, 4};
  const std::vector<TestInput> inputs{{random_tensor(keys, 1)},
                                      {random_tensor(keys, 2)},
                                      {random_tensor(values, 3)},
                                      {log_decays(numbers, 4)},
                                      {strengths(numbers, 5)},
                                      {random_tensor({4, 3, 4}, 6)},
                                      {Tensor::zeros(DType::i32, {2, length})}};
  const DeltaOptions options{.chunk = 3, .scale = 0.6f};
  const auto piece = [](Context& c, const Array& x, std::int64_t begin, std::int64_t count) {
    Shape shape = x.shape();
    shape[1] = count;
    const Tensor part = c.empty(x.dtype(), shape);
    strided_copy(*c.pool, x.tensor().view().slice(1, begin, count), part.view());
    return make_leaf(part, shape, replicated(shape.size()), false);
  };
  const auto close_to = [](const Tensor& got, const Tensor& want, std::int64_t row, std::int64_t at) {
    const std::int64_t width = want.size() / want.dim(0) / want.dim(1);
    for (std::int64_t i = 0; i < got.dim(1) * width; ++i)
      EXPECT_NEAR(got.span<float>()[static_cast<std::size_t>(i)],
                  want.span<float>()[static_cast<std::size_t>((row * want.dim(1) + at) * width + i)], 1e-5)
          << "token " << at + i / width;
  };
  on_mesh(
      Mesh(),
      [&](Context& c) {
        std::vector<Array> in;
        for (const TestInput& input : inputs)
          in.push_back(leaf(c, input.value, replicated(input.value.rank()), false));
        const NoGrad no_grad(c);
        const auto at_once = [&](const Array& v) {
          return gated_delta(c, in[0], in[1], v, {in[3], in[4]}, in[6], options).tensor();
        };
        const Tensor filtered = causal_conv(c, in[2], in[5], in[6]).tensor(),
                     all = at_once(causal_conv(c, in[2], in[5], in[6]));
        LayerCache cache;
        cache.window.capacity = length;
        cache.lengths = {0, 0, 0};
        // Feeds tokens [begin, begin + count) of both rows to two rows of the cache; -1: padding.
        const auto feed = [&](std::vector<std::int64_t> rows, std::int64_t begin, std::int64_t count,
                              bool drafted = false) {
          const std::vector<std::int64_t> tokens{rows[0] < 0 ? 0 : count, rows[1] < 0 ? 0 : count};
          const TokenPlaces places{{}, rows, tokens, begin == 0, drafted};
          const auto of = [&](std::size_t i) { return piece(c, in[i], begin, count); };
          const Array v = causal_conv(c, cache, 0, of(2), in[5], places);
          const Array out = gated_delta(c, cache, 1, of(0), of(1), v, {of(3), of(4)}, places, options);
          count_tokens(cache, places);
          for (std::int64_t b = 0; b < 2; ++b) {
            const auto row = [&](const Array& x) { return x.tensor().slice_rows(b, b + 1); };
            if (rows[static_cast<std::size_t>(b)] < 0) continue;
            close_to(row(v), filtered, b, begin);
            close_to(row(out), all, b, begin);
          }
        };
        feed({0, 2}, 0, 4);
        feed({-1, 2}, 4, 1);
        feed({0, -1}, 4, 1);
        cache_copy_prefix(c, cache, 1, 2, 5);
        feed({0, 1}, 5, 2);
        EXPECT_EQ(cache.lengths, (std::vector<std::int64_t>{7, 7, 5}));
        cache_copy_prefix(c, cache, 0, 0, 0);
        feed({0, -1}, 0, 2);
        // Drafts that are taken back leave the bits of the tokens before them.
        feed({0, -1}, 2, 1);
        cache_copy_prefix(c, cache, 1, 0, 3);
        for (std::int64_t token = 3; token < 5; ++token) feed({1, -1}, token, 1);
        feed({0, -1}, 3, 4, true);
        cache_copy_prefix(c, cache, 0, 0, 5);
        ASSERT_EQ(cache.states.size(), 2u);
        for (const StateStore& store : cache.states)
          EXPECT_TRUE(std::ranges::equal(store.values.slice_rows(0, 1).span<float>(),
                                         store.values.slice_rows(1, 2).span<float>()));
        feed({0, -1}, 5, 2);
      },
      1);
}

}  // namespace
}  // namespace switchyard
