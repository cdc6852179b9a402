// Sparse attention: the indexer's ops against finite differences and scalar references, on every mesh.
#include "ops/indexer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/attention/reference/index_reference.h"
#include "ops/attention.h"
#include "ops/gradient_testing.h"

namespace switchyard {
namespace {

using namespace autograd_test;

constexpr std::int64_t kBatch = 2, kLength = 12, kIndexHeads = 3, kIndexWidth = 8, kHeads = 4, kWidth = 5;

Tensor segments_of_documents() {
  return Tensor::of<std::int32_t>({kBatch, kLength},
                                  std::vector<std::int32_t>{1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 0,  //
                                                            1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3});
}

const std::vector<Mesh>& indexer_meshes() {
  static const std::vector<Mesh> all{Mesh({{"data", 2}}), Mesh({{"context", 3}}), Mesh({{"tensor", 4}}),
                                     Mesh({{"data", 2}, {"context", 2}, {"tensor", 2}})};
  return all;
}
// Of `dims` dims on those meshes: batch, sequence, and heads in the third dim where `heads` says so.
std::vector<Sharding> layouts(std::size_t dims, bool heads) {
  std::vector<Sharding> all;
  for (const Mesh& mesh : indexer_meshes()) {
    Sharding s = replicated(dims);
    if (mesh.axis_size("data") > 1) s.dims[0] = {"data"};
    if (mesh.axis_size("context") > 1) s.dims[1] = {"context"};
    if (heads && mesh.axis_size("tensor") > 1) s.dims[2] = {"tensor"};
    all.push_back(s);
  }
  return all;
}

// An indexer's q, k and weights, attention's q and k, and segments.
std::vector<TestInput> loss_inputs() {
  return {{random_tensor({kBatch, kLength, kIndexHeads, kIndexWidth}, 1), layouts(4, false)},
          {random_tensor({kBatch, kLength, kIndexWidth}, 2), layouts(3, false)},
          {random_tensor({kBatch, kLength, kIndexHeads}, 3), layouts(3, false)},
          {random_tensor({kBatch, kLength, kHeads, kWidth}, 4), layouts(4, true), false},
          {random_tensor({kBatch, kLength, kHeads, kWidth}, 5), layouts(4, true), false},
          {segments_of_documents(), layouts(2, false)}};
}

IndexVectors vectors_of(std::span<const Array> in) {
  return {in[0], in[1], in[2], 0.4f};
}

TEST(Gradients, IndexerLossOverAllKeys) {
  check_gradients({.function =
                       [](Context& c, std::span<const Array> in) {
                         return index_loss(c, index_scores(c, vectors_of(in), in[5]), in[3], in[4], in[5], {},
                                           {0.3f, 2.0});
                       },
                   .inputs = loss_inputs(),
                   .meshes = indexer_meshes(),
                   .step = 1e-3});
}

TEST(Gradients, IndexerLossOverChosenKeys) {
  check_gradients(
      {.function =
           [](Context& c, std::span<const Array> in) {
             const Array scores = index_scores(c, vectors_of(in), in[5]);
             return index_loss(c, scores, in[3], in[4], in[5], chosen_of_scores(c, scores, 4), {0.3f, 2.0});
           },
       .inputs = loss_inputs(),
       .meshes = indexer_meshes(),
       .step = 1e-3});
}

TEST(Indexer, AttentionLearnsNothingFromItsLoss) {
  on_mesh(Mesh(), [](Context& c) {
    std::vector<Array> in;
    for (const TestInput& input : loss_inputs())
      in.push_back(leaf(c, input.value, replicated(input.value.rank()), true));
    const Array scores = index_scores(c, vectors_of(in), in[5]);
    backward(c, index_loss(c, scores, in[3], in[4], in[5], chosen_of_scores(c, scores, 4), {0.3f, 2.0}));
    for (const std::size_t i : {0, 1, 2}) EXPECT_TRUE(in[i].grad().defined()) << i;
    for (const std::size_t i : {3, 4}) EXPECT_FALSE(in[i].grad().defined()) << i;
    const Array x = leaf(c, random_tensor({2, 3}, 9), replicated(2), true);
    EXPECT_FALSE(detach(c, x).value()->requires_grad);
  });
}

// The indexer chooses the keys that sorting would, on every mesh, from scores that are
// there or are made for some queries at a time.
TEST(Indexer, ChoosesTheKeysOfTheLargestScores) {
  const std::vector<TestInput> inputs = loss_inputs();
  const Tensor segments = segments_of_documents();
  const IndexSizes sizes{kBatch, kLength, kLength, kIndexHeads, kIndexWidth};
  SeenKeys seen{kLength, kLength};
  seen.q_segment = seen.kv_segment = segments.data<std::int32_t>();
  std::vector<float> scores(static_cast<std::size_t>(kBatch * kLength * kLength));
  reference::index_scores(sizes, seen, inputs[0].value.data<float>(), inputs[1].value.data<float>(),
                          inputs[2].value.data<float>(), 0.4, scores.data());
  std::vector<std::int32_t> want;
  for (std::int64_t row = 0; row < kBatch * kLength; ++row) {
    std::uint32_t bits = 0;
    for (const std::int64_t t : reference::chosen_keys(scores.data() + row * kLength, kLength, 4))
      bits |= 1u << t;
    want.push_back(static_cast<std::int32_t>(bits));
  }
  for (std::size_t m = 0; m < indexer_meshes().size(); ++m) {
    for (const bool at_once : {false, true}) {
      Gathered gathered(indexer_meshes()[m]);
      on_mesh(
          indexer_meshes()[m],
          [&](Context& c) {
            std::vector<Array> in;
            for (const TestInput& input : inputs)
              in.push_back(leaf(c, input.value, input.shardings[m], false));
            const Array chosen = at_once ? chosen_of_scores(c, index_scores(c, vectors_of(in), in[5]), 4)
                                         : chosen_keys(c, vectors_of(in), in[5], 4);
            // As numbers that floats hold.
            Tensor numbers(DType::f32, chosen.tensor().shape());
            for (std::int64_t i = 0; i < numbers.size(); ++i)
              numbers.data<float>()[i] = static_cast<float>(chosen.tensor().data<std::int32_t>()[i]);
            gathered.put(c, "chosen", make_leaf(numbers, chosen.shape(), chosen.sharding(), false));
          },
          2);
      const Tensor got = gathered.get("chosen");
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_EQ(static_cast<std::int32_t>(got.data<float>()[i]), want[i])
            << indexer_meshes()[m].to_string() << " query " << i;
    }
  }
}

// Query 8 of the first row sees nine keys. The query's own choice is no tie. Another choice is as far off as
// the scores of its keys say.
TEST(Indexer, MeasuresHowFarItIsFromReplayedKeys) {
  on_mesh(Mesh(), [](Context& c) {
    std::vector<Array> in;
    for (const TestInput& input : loss_inputs())
      in.push_back(leaf(c, input.value, replicated(input.value.rank()), false));
    const Tensor own = chosen_keys(c, vectors_of(in), in[5], 4).tensor().clone();
    const Tensor scores = index_scores(c, vectors_of(in), in[5]).tensor().clone();
    const std::int64_t query = 8;
    const std::span<const float> of_query =
        std::span<const float>(scores.span<float>()).subspan(query * kLength, kLength);
    std::vector<std::int64_t> order(query + 1);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, std::greater(), [&](std::int64_t key) { return of_query[key]; });
    float largest = 0;
    for (const std::int64_t key : order) largest = std::max(largest, std::abs(of_query[key]));
    // The two numbers of the query when the keys of `turned` change sides; all other queries are no ties.
    const auto ties_with = [&](std::vector<std::int64_t> turned) {
      const Tensor replayed = own.clone(), ties(DType::f32, {kBatch, kLength, 2});
      for (const std::int64_t key : turned) replayed.data<std::int32_t>()[query] ^= 1 << key;
      const Array chosen = replayed_keys(c, vectors_of(in), in[5], 4, replayed, ties);
      EXPECT_TRUE(std::ranges::equal(chosen.tensor().span<std::int32_t>(), replayed.span<std::int32_t>()));
      for (std::int64_t i = 0; i < ties.size(); ++i)
        EXPECT_TRUE(i / 2 == query || ties.data<float>()[i] == 0) << i;
      return std::pair(ties.data<float>()[query * 2], ties.data<float>()[query * 2 + 1]);
    };
    EXPECT_EQ(ties_with({}), std::pair(0.0f, 0.0f));
    EXPECT_EQ(ties_with({order[3], order[4]}),
              std::pair(1.0f, (of_query[order[3]] - of_query[order[4]]) / largest));
    EXPECT_EQ(ties_with({order[0], order[1], order[4], order[5]}),
              std::pair(2.0f, (of_query[order[0]] - of_query[order[5]]) / largest));
    EXPECT_EQ(ties_with({order[3]}), std::pair(1.0f, 1.0f)) << "a key less";
    EXPECT_EQ(ties_with({order[4]}), std::pair(1.0f, 1.0f)) << "a key more";
    EXPECT_EQ(ties_with({order[3], 10}), std::pair(1.0f, 1.0f)) << "a key that the query does not see";
  });
}

Tensor some_bits() {
  Tensor bits(DType::i32, {kBatch, kLength, 1});
  for (std::int64_t i = 0; i < bits.size(); ++i) {
    const std::int64_t place = i % kLength;
    std::uint32_t word = 1u << place;  // a query's own key, and some others
    for (std::int64_t t = 0; t < place; ++t)
      if ((i * 7 + t * t) % 3 == 0) word |= 1u << t;
    bits.data<std::int32_t>()[i] = static_cast<std::int32_t>(word);
  }
  return bits;
}

TEST(Gradients, AttentionToChosenKeys) {
  for (const bool balanced : {false, true}) {
    check_gradients(
        {.function =
             [balanced](Context& c, std::span<const Array> in) {
               return attention(c, in[0], in[1], in[2], in[3], {0.4f, balanced}, nullptr, nullptr, &in[4]);
             },
         .inputs = {{random_tensor({kBatch, kLength, kHeads, kWidth}, 1), layouts(4, true)},
                    {random_tensor({kBatch, kLength, kHeads, kWidth}, 2), layouts(4, true)},
                    {random_tensor({kBatch, kLength, kHeads, 3}, 3), layouts(4, true)},
                    {segments_of_documents(), layouts(2, false)},
                    {some_bits(), layouts(3, false)}},
         .meshes = indexer_meshes()});
  }
}

TEST(Gradients, SubtractMean) {
  check_gradients({.function = [](Context& c, std::span<const Array> in) { return subtract_mean(c, in[0]); },
                   .inputs = {{random_tensor({kBatch, kLength, 7}, 1), layouts(3, false)}},
                   .meshes = indexer_meshes()});
}

}  // namespace
}  // namespace switchyard
