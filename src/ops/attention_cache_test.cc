// Attention over the cache: tokens appended in pieces or alone give the results of one call with all tokens.
#include "ops/attention_cache.h"

#include <algorithm>

#include "autograd/testing.h"

namespace switchyard {
namespace {

using namespace autograd_test;

constexpr std::int64_t kCacheRows = 2, kCacheTokens = 23, kCacheHeads = 4;
constexpr float kCacheScale = 0.4f;

// Tokens [begin, end) of x [B,S,...].
Tensor tokens_of(const Tensor& x, std::int64_t begin, std::int64_t end) {
  Shape shape = x.shape();
  shape[1] = end - begin;
  Tensor part(x.dtype(), shape);
  const std::int64_t width = x.size() / (kCacheRows * kCacheTokens);
  for (std::int64_t b = 0; b < kCacheRows; ++b) {
    for (std::int64_t i = 0; i < (end - begin) * width; ++i) {
      const std::int64_t to = b * (end - begin) * width + i, from = (b * kCacheTokens + begin) * width + i;
      if (x.dtype() == DType::i32)
        part.data<std::int32_t>()[to] = x.data<std::int32_t>()[from];
      else
        part.data<float>()[to] = x.data<float>()[from];
    }
  }
  return part;
}

struct CacheInputs {
  Tensor q = random_tensor({kCacheRows, kCacheTokens, kCacheHeads, 5}, 1),
         k = random_tensor({kCacheRows, kCacheTokens, 2, 5}, 2),
         v = random_tensor({kCacheRows, kCacheTokens, 2, 3}, 3), sinks = random_tensor({kCacheHeads}, 4);
  Tensor positions{DType::i32, {kCacheRows, kCacheTokens}}, segments{DType::i32, {kCacheRows, kCacheTokens}};

  CacheInputs() {
    for (std::int64_t i = 0; i < kCacheRows * kCacheTokens; ++i) {
      positions.data<std::int32_t>()[i] = static_cast<std::int32_t>(i % kCacheTokens);
      segments.data<std::int32_t>()[i] = 1;
    }
  }
};

// What the tokens get that come in pieces which end at `ends`, and the keys that the row's places hold.
class Pieces {
 public:
  Pieces(Context& context, const CacheInputs& inputs, const Sharding& heads, bool int8, const KeyWindow& seen)
      : context_(context), inputs_(inputs), heads_(heads) {
    cache_.window = {kCacheTokens, seen};
    cache_.int8 = int8;
    cache_.lengths.assign(kCacheRows, 0);
  }

  // The tokens [begin, end), which come next.
  Tensor next(std::int64_t begin, std::int64_t end, const AttentionOptions& options, bool sinks) {
    const auto part = [&](const Tensor& x, const Sharding& s) {
      return leaf(context_, tokens_of(x, begin, end), s, false);
    };
    const std::vector<std::int64_t> rows{0, 1}, tokens(kCacheRows, end - begin);
    const Array q = part(inputs_.q, heads_), k = part(inputs_.k, heads_), v = part(inputs_.v, heads_),
                of_heads = leaf(context_, inputs_.sinks, replicated(1), false);
    const TokenPlaces places{part(inputs_.positions, replicated(2)), rows, tokens, begin == 0};
    cache_append(context_, cache_, q, std::span(&k, 1), std::span(&v, 1), places);
    return attend(context_, cache_, q, places, options, sinks ? &of_heads : nullptr).tensor();
  }

 private:
  Context& context_;
  const CacheInputs& inputs_;
  Sharding heads_;
  LayerCache cache_;
};

void expect_part(const Tensor& found, const Tensor& whole, std::int64_t begin, const std::string& what) {
  const std::int64_t width = whole.size() / (kCacheRows * kCacheTokens), tokens = found.dim(1);
  for (std::int64_t i = 0; i < found.size(); ++i) {
    const std::int64_t row = i / (tokens * width), at = i % (tokens * width);
    ASSERT_NEAR(found.data<float>()[i], whole.data<float>()[(row * kCacheTokens + begin) * width + at], 2e-6)
        << what << " token " << begin + at / width;
  }
}

TEST(LayerCache, PiecesAndSingleTokensSeeWhatTheWholeSequenceSees) {
  const CacheInputs inputs;
  const Mesh two({{"tensor", 2}});
  for (const Mesh& mesh : {Mesh(), two}) {
    const Sharding heads = mesh.size() == 1 ? replicated(4) : Sharding{{{}, {}, {"tensor"}, {}}, {}};
    for (const auto& [window, chunk] : {std::pair{0, 0}, {6, 0}, {1, 0}, {0, 8}, {5, 7}}) {
      for (const int variant : {0, 1, 2, 3, 4, 5, 6, 7}) {
        const bool sinks = variant % 2 == 1, int8 = variant % 4 >= 2, forgets = variant >= 4;
        const KeyWindow seen = forgets ? KeyWindow{window, chunk} : KeyWindow{};
        const AttentionOptions options{kCacheScale, false, window, chunk};
        const std::string what = "window " + std::to_string(window) + " chunk " + std::to_string(chunk) +
                                 (sinks ? " sinks" : "") + (int8 ? " int8" : "") +
                                 (forgets ? " forgets" : "");
        on_mesh(mesh, [&](Context& c) {
          const NoGrad no_grad(c);
          const Tensor whole = Pieces(c, inputs, heads, int8, {}).next(0, kCacheTokens, options, sinks);
          if (!int8) {  // without a cache too
            const auto input = [&](const Tensor& x, const Sharding& s) { return leaf(c, x, s, false); };
            const Array of_heads = input(inputs.sinks, replicated(1));
            const Tensor at_once =
                attention(c, input(inputs.q, heads), input(inputs.k, heads), input(inputs.v, heads),
                          input(inputs.segments, replicated(2)), options, sinks ? &of_heads : nullptr)
                    .tensor();
            expect_part(at_once, whole, 0, what + " at once");
          }
          Pieces pieces(c, inputs, heads, int8, seen);
          for (const auto& [begin, end] : {std::pair{0, 7}, {7, 12}})
            expect_part(pieces.next(begin, end, options, sinks), whole, begin, what + " piece");
          for (std::int64_t i = 12; i < kCacheTokens; ++i)
            expect_part(pieces.next(i, i + 1, options, sinks), whole, i, what + " alone");
        });
      }
    }
  }
}

// The results for all tokens, given in pieces and alone, of keys that are two arrays side by side.
std::vector<Tensor> latent_results(Context& c, bool int8, const KeyWindow& seen, bool values_in_keys) {
  const Tensor q = random_tensor({kCacheRows, kCacheTokens, kCacheHeads, 24}, 1),
               latent = random_tensor({kCacheRows, kCacheTokens, 16}, 2),
               turned = random_tensor({kCacheRows, kCacheTokens, 8}, 3);
  const Tensor positions = CacheInputs().positions;
  LayerCache cache;
  cache.window = {kCacheTokens, seen};
  cache.int8 = int8;
  cache.lengths.assign(kCacheRows, 0);
  std::vector<Tensor> results;
  for (const auto& [begin, end] : {std::pair{0, 7}, {7, 12}, {12, 13}, {13, 14}, {14, 23}}) {
    const auto part = [&, from = begin, to = end](const Tensor& x) {
      return leaf(c, tokens_of(x, from, to), replicated(x.shape().size()), false);
    };
    const std::vector<std::int64_t> rows{0, 1}, tokens(kCacheRows, end - begin);
    const TokenPlaces places{part(positions), rows, tokens, begin == 0};
    const Array keys[] = {part(latent), part(turned)}, queries = part(q);
    const std::span<const Array> values(keys, values_in_keys ? 0 : 1);
    cache_append(c, cache, queries, keys, values, places);
    EXPECT_EQ(cache.v.values.defined(), !values_in_keys);
    results.push_back(
        attend(c, cache, queries, places, {kCacheScale, false, seen.window, seen.chunk}).tensor());
  }
  return results;
}

TEST(LayerCache, ValuesThatAreTheFirstPartOfKeysAreKeptOnce) {
  for (const KeyWindow seen : {KeyWindow{}, {6, 0}, {0, 8}}) {
    for (const bool int8 : {false, true}) {
      on_mesh(Mesh(), [&](Context& c) {
        const NoGrad no_grad(c);
        const std::vector<Tensor> once = latent_results(c, int8, seen, true),
                                  apart = latent_results(c, int8, seen, false);
        ASSERT_EQ(once.size(), apart.size());
        for (std::size_t i = 0; i < once.size(); ++i) {
          const auto found = once[i].span<float>(), expected = apart[i].span<float>();
          EXPECT_TRUE(std::ranges::equal(found, expected)) << "piece " << i;  // bit for bit
        }
      });
    }
  }
}

}  // namespace
}  // namespace switchyard
