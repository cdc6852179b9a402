// Attention with sliding windows, chunks and sinks.
#include "ops/attention.h"

#include "ops/gradient_testing.h"

namespace switchyard {
namespace {

using namespace autograd_test;

// With a window, chunks and sinks, over split heads, rows and sequences.
TEST(Gradients, AttentionWithWindowsChunksAndSinks) {
  const Sharding heads{{{}, {}, {"tensor"}, {}}, {}}, split{{{}, {"context"}, {}, {}}, {}},
      all{{{"data"}, {"context"}, {"tensor"}, {}}, {}};
  const Sharding tokens{{{}, {"context"}}, {}}, all_tokens{{{"data"}, {"context"}}, {}},
      of_tensor{{{"tensor"}}, {}};
  const Tensor segments = Tensor::of<std::int32_t>(
      {2, 12},
      std::vector<std::int32_t>{1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 0, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3});
  for (const auto& [window, chunk] : {std::pair{0, 0}, {1, 0}, {4, 0}, {0, 5}, {3, 4}}) {
    for (const bool balanced : {false, true}) {
      check_gradients({.function =
                           [&](Context& c, std::span<const Array> in) {
                             const AttentionOptions options{0.4f, balanced, window, chunk};
                             return attention(c, in[0], in[1], in[2], in[3], options, &in[4]);
                           },
                       .inputs = {{random_tensor({2, 12, 4, 5}, 1), {heads, split, split, all}},
                                  {random_tensor({2, 12, 2, 5}, 2), {heads, split, replicated(4), all}},
                                  {random_tensor({2, 12, 2, 3}, 3), {heads, split, split, all}},
                                  {segments, {replicated(2), tokens, tokens, all_tokens}},
                                  {random_tensor({4}, 4),
                                   {replicated(1), replicated(1), {{{"context"}}, {}}, of_tensor}}},
                       .meshes = {Mesh({{"tensor", 2}}), Mesh({{"context", 3}}), Mesh({{"context", 2}}),
                                  Mesh({{"data", 2}, {"context", 2}, {"tensor", 2}})}});
    }
  }
}

// The options hide the same keys as a reference that goes over all pairs.
TEST(AttentionMask, WindowsAndChunksHideTheKeysThatTheyShould) {
  constexpr std::int64_t kPlaces = 12;
  const Tensor q = random_tensor({1, kPlaces, 1, 3}, 1), k = random_tensor({1, kPlaces, 1, 3}, 2),
               v = random_tensor({1, kPlaces, 1, 1}, 3), sinks = random_tensor({1}, 4);
  const Tensor segments = Tensor::of<std::int32_t>({1, kPlaces}, std::vector<std::int32_t>(kPlaces, 1));
  for (const auto& [window, chunk] : {std::pair{0, 0}, {4, 0}, {0, 5}, {3, 4}}) {
    on_mesh(Mesh(), [&](Context& c) {
      const auto whole = [&](const Tensor& x) { return leaf(c, x, replicated(x.rank())); };
      const Array sink = whole(sinks);
      const Tensor out =
          attention(c, whole(q), whole(k), whole(v), whole(segments), {0.4f, false, window, chunk}, &sink)
              .tensor();
      for (std::int64_t i = 0; i < kPlaces; ++i) {
        double weights = std::exp(static_cast<double>(sinks.data<float>()[0])), sum = 0;
        for (std::int64_t j = 0; j <= i; ++j) {
          if ((window > 0 && i - j >= window) || (chunk > 0 && i / chunk != j / chunk)) continue;
          double score = 0;
          for (std::int64_t d = 0; d < 3; ++d)
            score += static_cast<double>(q.data<float>()[i * 3 + d] * k.data<float>()[j * 3 + d]);
          const double weight = std::exp(0.4 * score);
          weights += weight;
          sum += weight * static_cast<double>(v.data<float>()[j]);
        }
        EXPECT_NEAR(out.data<float>()[i], sum / weights, 1e-5)
            << i << " window " << window << " chunk " << chunk;
      }
    });
  }
}

}  // namespace
}  // namespace switchyard
