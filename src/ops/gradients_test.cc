// Every op but those of attention (attention_gradients_test.cc): its gradient against finite differences, and
// the same values on every mesh.
#include "ops/attention.h"
#include "ops/basic.h"
#include "ops/clamp.h"
#include "ops/einsum.h"
#include "ops/embedding.h"
#include "ops/gradient_testing.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

using namespace autograd_test;

TEST(Gradients, RmsNormWholeAndSplit) {
  check_gradients(
      {.function = [](Context& c, std::span<const Array> in) { return rms_norm(c, in[0], in[1], 1e-3f); },
       .inputs = {{random_tensor({4, 3, 8}, 1),
                   {{{{"data"}, {}, {"tensor"}}, {}}, {{{}, {}, {"tensor"}}, {}}, {{{"data"}, {}, {}}, {}}}},
                  {random_tensor({8}, 2), {{{{"tensor"}}, {}}, {{{}}, {}}, {{{"tensor"}}, {}}}}},
       .meshes = {kData2Tensor2, kTensor4, kData2Tensor2}});
}

TEST(Gradients, RmsNormOfHeadsWholeAndSplit) {
  const Sharding x_both{{{"data"}, {}, {"tensor"}, {}}, {}}, x_heads{{{}, {}, {"tensor"}, {}}, {}};
  check_gradients(
      {.function = [](Context& c,
                      std::span<const Array> in) { return rms_norm_of_heads(c, in[0], in[1], 1e-3f); },
       .inputs = {{random_tensor({2, 3, 4, 5}, 1), {x_both, x_heads, x_both}},
                  {random_tensor({4, 5}, 2), {{{{"tensor"}, {}}, {}}, replicated(2), replicated(2)}}},
       .meshes = {kData2Tensor2, kTensor4, kData2Tensor2}});
}

TEST(Gradients, RmsNormWithoutScale) {
  check_gradients(
      {.function = [](Context& c,
                      std::span<const Array> in) { return rms_norm_without_scale(c, in[0], 1e-3f); },
       .inputs = {{random_tensor({2, 3, 4, 6}, 1),
                   {{{{"data"}, {}, {"tensor"}, {}}, {}}, {{{}, {}, {"tensor"}, {}}, {}}}}},
       .meshes = {kData2Tensor2, kTensor4}});
}

// Numbers of 0.3 to 0.9 and their negatives: none is near the bound of 0.5 or 0.
TEST(Gradients, ClampWholeAndSplit) {
  const Tensor x = random_tensor({2, 3, 4, 5}, 1);
  const auto values = x.span<float>();
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = (i % 2 == 0 ? 1.0f : -1.0f) * (i % 3 == 0 ? 0.3f : 0.9f);
  check_gradients({.function = [](Context& c, std::span<const Array> in) { return clamp(c, in[0], 0.5f); },
                   .inputs = {{x, {{{{"data"}, {}, {"tensor"}, {}}, {}}, {{{}, {}, {"tensor"}, {}}, {}}}}},
                   .meshes = {kData2Tensor2, kTensor4}});
}

TEST(Gradients, BiasOfTheLastDims) {
  const auto function = [](Context& c, std::span<const Array> in) { return add_bias(c, in[0], in[1]); };
  check_gradients({.function = function,
                   .inputs = {{random_tensor({2, 3, 4, 5}, 1),
                               {{{{"data"}, {}, {"tensor"}, {}}, {}}, {{{}, {}, {"tensor"}, {}}, {}}}},
                              {random_tensor({4, 5}, 2), {replicated(2), {{{"tensor"}, {}}, {}}}}},
                   .meshes = {kData2Tensor2, kTensor4}});
  check_gradients(
      {.function = function,
       .inputs = {{random_tensor({2, 3, 128}, 1), {{{{"data"}, {}, {"tensor"}}, {}}, {{{}, {}, {}}, {}}}},
                  {random_tensor({128}, 2), {{{{"tensor"}}, {}}, {{{"tensor"}}, {}}}}},
       .meshes = {kData2Tensor2, kTensor4}});
}

// Each reader's gradient is gathered into memory that the ranks share, and both are added up.
TEST(Gradients, PartialSumThatTwoReadInOtherParts) {
  check_gradients({.function =
                       [](Context& c, std::span<const Array> in) {
                         if (c.mesh->size() == 1) return add(c, in[0], in[0]);
                         const Array rows = reshard(c, in[0], {{{"data"}, {}}, {}}),
                                     columns = reshard(c, in[0], {{{}, {"data"}}, {}});
                         return add(c, replicate(c, rows), replicate(c, columns));
                       },
                   .inputs = {{random_tensor({8, 12}, 1), {{{{}, {}}, {"data"}}}}},
                   .meshes = {Mesh({{"data", 4}})}});
}

TEST(Gradients, JoinLast) {
  const Sharding rows{{{"data"}, {}, {}}, {}};
  check_gradients(
      {.function = [](Context& c, std::span<const Array> in) { return join_last(c, in[0], in[1]); },
       .inputs = {{random_tensor({4, 3, 5}, 1), {rows}}, {random_tensor({4, 3, 2}, 2), {rows}}},
       .meshes = {Mesh({{"data", 1}}), Mesh({{"data", 2}})}});
}

TEST(Gradients, EmbeddingWithSplitVocabulary) {
  const Tensor tokens = random_integers({4, 3}, 5, 0, 12);
  const Sharding want{{{"data"}, {}, {"tensor"}}, {}}, clash{{{"data", "tensor"}, {}, {}}, {}};
  for (const Sharding& layout : {want, clash}) {
    check_gradients(
        {.function =
             [&](Context& c, std::span<const Array> in) {
               return embedding(c, in[0], in[1], c.mesh->size() == 1 ? replicated(3) : layout);
             },
         .inputs = {{random_tensor({12, 8}, 6),
                     {{{{"tensor"}, {"data"}}, {}}, {{{"data", "tensor"}, {}}, {}}, {{{}, {"tensor"}}, {}}}},
                    {tokens, {{{{"data"}, {}}, {}}, {{{}, {}}, {}}}}},
         .meshes = {kData2Tensor2, kData2Tensor2, kData2Tensor2}});
  }
}

// A large table that is split like the tokens stays where it is; a small one is gathered.
TEST(Gradients, EmbeddingMovesTheFewerRows) {
  const Mesh mesh({{"fsdp", 2}, {"expert", 2}});
  const Sharding want{{{"fsdp", "expert"}, {}, {}}, {}}, tokens{{{"fsdp", "expert"}, {}}, {}};
  for (std::int64_t vocab : {6, 64}) {
    const TestFunction function = [&](Context& c, std::span<const Array> in) {
      c.comm->reset_counts();
      const Array y = embedding(c, in[0], in[1], c.mesh->size() == 1 ? replicated(3) : want);
      std::set<std::string> sent;
      for (const auto& count : c.comm->counts()) sent.insert(count.kind + " " + std::to_string(count.bytes));
      if (c.mesh->size() > 1 && vocab == 6) {
        EXPECT_EQ(sent, std::set<std::string>{"all_gather " + std::to_string(6 * 2 * 4 * 3)});
      }
      if (c.mesh->size() > 1 && vocab == 64) {  // 3 tokens a rank: ids, then three quarters of 12 rows of 2
        EXPECT_EQ(sent, (std::set<std::string>{"all_gather " + std::to_string(3 * 4 * 3),
                                               "all_to_all " + std::to_string(3 * 2 * 4 * 3)}));
      }
      return y;
    };
    check_gradients({.function = function,
                     .inputs = {{random_tensor({vocab, 8}, 6), {{{{}, {"fsdp", "expert"}}, {}}}},
                                {random_integers({4, 3}, 5, 0, static_cast<std::int32_t>(vocab)), {tokens}}},
                     .meshes = {mesh}});
  }
}

TEST(Gradients, LinearCrossEntropyWithSplitVocabulary) {
  const Tensor targets = random_integers({4, 3}, 7, 0, 16);
  const std::int32_t segment_ids[] = {1, 1, 0, 1, 2, 2, 0, 0, 0, 1, 1, 1};
  const Tensor segments = Tensor::of<std::int32_t>({4, 3}, segment_ids);
  const Mesh fsdp_expert({{"fsdp", 2}, {"expert", 2}});
  for (bool vocab_major : {false, true}) {
    for (float cap : {0.0f, 5.0f}) {
      const CrossEntropyOptions options{.count = 8, .z_loss_multiplier = 0.1, .logit_soft_cap = cap};
      const Sharding columns =
          vocab_major ? Sharding{{{"tensor"}, {"data"}}, {}} : Sharding{{{"data"}, {"tensor"}}, {}};
      const Sharding clash =
          vocab_major ? Sharding{{{"data", "tensor"}, {}}, {}} : Sharding{{{}, {"data", "tensor"}}, {}};
      const Sharding fsdp =
          vocab_major ? Sharding{{{}, {"fsdp", "expert"}}, {}} : Sharding{{{"fsdp", "expert"}, {}}, {}};
      const Sharding batch{{{"fsdp", "expert"}, {}}, {}};
      check_gradients(
          {.function =
               [&](Context& c, std::span<const Array> in) {
                 return linear_cross_entropy(c, in[0], in[1], vocab_major, in[2], in[3], options).loss;
               },
           .inputs = {{random_tensor({4, 3, 8}, 8),
                       {{{{"data"}, {}, {"tensor"}}, {}},
                        {{{"data"}, {}, {}}, {}},
                        {{{}, {}, {}}, {}},
                        {{{"fsdp", "expert"}, {}, {}}, {}}}},
                      {random_tensor(vocab_major ? Shape{16, 8} : Shape{8, 16}, 9, 0.5f),
                       {columns, clash, columns, fsdp}},
                      {targets, {{{{"data"}, {}}, {}}, {{{"data"}, {}}, {}}, {{{}, {}}, {}}, batch}},
                      {segments, {{{{"data"}, {}}, {}}, {{{"data"}, {}}, {}}, {{{}, {}}, {}}, batch}}},
           .meshes = {kData2Tensor2, kData2Tensor2, kData2Tensor2, fsdp_expert}});
    }
  }
}

TEST(Gradients, TokenLogProbsWithSplitVocabulary) {
  const std::int32_t segment_ids[] = {1, 1, 0, 1, 2, 2, 0, 0, 0, 1, 1, 1};
  const Tensor segments = Tensor::of<std::int32_t>({4, 3}, segment_ids),
               targets = random_integers({4, 3}, 7, 0, 16);
  const Mesh fsdp_expert({{"fsdp", 2}, {"expert", 2}});
  const Sharding rows{{{"data"}, {}}, {}}, batch{{{"fsdp", "expert"}, {}}, {}}, whole{{{}, {}}, {}};
  for (bool vocab_major : {false, true}) {
    for (float cap : {0.0f, 5.0f}) {
      const auto head_of_mesh = [&](const Axes& inputs, const Axes& columns) {
        return vocab_major ? Sharding{{columns, inputs}, {}} : Sharding{{inputs, columns}, {}};
      };
      check_gradients(
          {.function =
               [&](Context& c, std::span<const Array> in) {
                 return token_log_probs(c, in[0], in[1], vocab_major, in[2], in[3], cap);
               },
           .inputs = {{random_tensor({4, 3, 8}, 8),
                       {{{{"data"}, {}, {"tensor"}}, {}},
                        {{{"data"}, {}, {}}, {}},
                        {{{}, {}, {}}, {}},
                        {{{"fsdp", "expert"}, {}, {}}, {}}}},
                      {random_tensor(vocab_major ? Shape{16, 8} : Shape{8, 16}, 9, 0.5f),
                       {head_of_mesh({"data"}, {"tensor"}), head_of_mesh({}, {"data", "tensor"}),
                        head_of_mesh({"data"}, {"tensor"}), head_of_mesh({"fsdp", "expert"}, {})}},
                      {targets, {rows, rows, whole, batch}},
                      {segments, {rows, rows, whole, batch}}},
           .meshes = {kData2Tensor2, kData2Tensor2, kData2Tensor2, fsdp_expert}});
    }
  }
}

// Their sum is the cross entropy, and a token of segment 0 has none.
TEST(Gradients, TokenLogProbsEqualTheCrossEntropy) {
  const std::int32_t segment_ids[] = {1, 0, 1, 2, 2, 0};
  on_mesh(Mesh(), [&](Context& c) {
    const Array hidden = leaf(c, random_tensor({2, 3, 5}, 1), replicated(3)),
                head = leaf(c, random_tensor({5, 7}, 2), replicated(2)),
                targets = leaf(c, random_integers({2, 3}, 3, 0, 7), replicated(2)),
                segments = leaf(c, Tensor::of<std::int32_t>({2, 3}, segment_ids), replicated(2));
    const Tensor log_probs = token_log_probs(c, hidden, head, false, targets, segments).tensor();
    double sum = 0;
    for (std::size_t i = 0; i < 6; ++i) {
      const float x = log_probs.span<float>()[i];
      sum -= static_cast<double>(x);
      EXPECT_EQ(x == 0, segment_ids[i] == 0) << i;
    }
    const Tensor loss = linear_cross_entropy(c, hidden, head, false, targets, segments, {}).loss.tensor();
    EXPECT_NEAR(loss.data<float>()[0], sum, 1e-5);
  });
}

TEST(Gradients, LinearCrossEntropyOfManyTokensGathersTheHead) {
  const Sharding batch{{{"fsdp"}, {}}, {}};
  check_gradients({.function =
                       [](Context& c, std::span<const Array> in) {
                         c.comm->reset_counts();
                         const Array loss =
                             linear_cross_entropy(c, in[0], in[1], false, in[2], in[3], {.count = 24}).loss;
                         for (const auto& count : c.comm->counts())
                           EXPECT_TRUE(count.kind == "all_gather" || count.kind == "all_reduce")
                               << count.kind;
                         return loss;
                       },
                   .inputs = {{random_tensor({4, 6, 8}, 8), {{{{"fsdp"}, {}, {}}, {}}}},
                              {random_tensor({8, 16}, 9, 0.5f), {{{{"fsdp"}, {}}, {}}}},
                              {random_integers({4, 6}, 7, 0, 16), {batch}},
                              {random_integers({4, 6}, 7, 0, 2), {batch}}},
                   .meshes = {Mesh({{"fsdp", 2}})}});
}

TEST(Gradients, LinearCrossEntropyEqualsTheDefinition) {
  const Tensor hidden = random_tensor({2, 3, 5}, 1), head = random_tensor({5, 7}, 2);
  const Tensor targets = random_integers({2, 3}, 3, 0, 7);
  const std::int32_t segment_ids[] = {1, 0, 1, 1, 1, 0};
  double loss = 0, z = 0;
  for (std::int64_t t = 0; t < 6; ++t) {
    if (segment_ids[t] == 0) continue;
    double logits[7], sum = 0;
    for (std::int64_t v = 0; v < 7; ++v) {
      logits[v] = 0;
      for (std::int64_t m = 0; m < 5; ++m)
        logits[v] += static_cast<double>(hidden.data<float>()[t * 5 + m]) * head.data<float>()[m * 7 + v];
      sum += std::exp(logits[v]);
    }
    loss += std::log(sum) - logits[targets.data<std::int32_t>()[t]];
    z += 0.01 * std::log(sum) * std::log(sum);
  }
  on_mesh(Mesh(), [&](Context& c) {
    const CrossEntropy got =
        linear_cross_entropy(c, leaf(c, hidden, replicated(3)), leaf(c, head, replicated(2)), false,
                             leaf(c, targets, replicated(2)),
                             leaf(c, Tensor::of<std::int32_t>({2, 3}, segment_ids), replicated(2)),
                             {.count = 4, .z_loss_multiplier = 0.01});
    EXPECT_NEAR(got.loss.tensor().data<float>()[0], (loss + z) / 4, 1e-5);
    EXPECT_NEAR(got.z_loss.tensor().data<float>()[0], z / 4, 1e-5);
  });
}

TEST(Gradients, ElementwiseAndRearranging) {
  const Sharding split{{{"data"}, {}, {"tensor"}}, {}}, tokens{{{"data"}, {"tensor"}, {}}, {}};
  const Tensor a = random_tensor({4, 6, 8}, 1), b = random_tensor({4, 6, 8}, 2);
  auto check = [&](TestFunction function, const Sharding& s) {
    check_gradients(
        {.function = std::move(function), .inputs = {{a, {s}}, {b, {s}}}, .meshes = {kData2Tensor2}});
  };
  check([](Context& c, std::span<const Array> in) { return swiglu(c, in[0], in[1]); }, split);
  check([](Context& c,
           std::span<const Array> in) { return add(c, scale(c, in[0], -1.5f), add(c, in[1], in[0])); },
        split);
  check([](Context& c,
           std::span<const Array> in) { return capped_logits(c, add(c, in[0], scale(c, in[1], 3)), 1.5f); },
        split);
  check(
      [](Context& c, std::span<const Array> in) {  // both parts are used, in other order
        const auto parts = split_last(c, add(c, in[0], in[1]), 4);
        return swiglu(c, parts.second, parts.first);
      },
      tokens);
  check(
      [](Context& c, std::span<const Array> in) {  // one part is not used
        return swiglu(c, split_last(c, in[0], 3).second, split_last(c, in[1], 3).second);
      },
      tokens);
  check(
      [](Context& c, std::span<const Array> in) {
        auto parts = chunk_sequence(c, in[0], 3);
        const auto other = chunk_sequence(c, in[1], 3);
        for (std::size_t i = 0; i < 3; ++i) parts[i] = swiglu(c, parts[i], other[i]);
        return concat_sequence(c, parts);
      },
      tokens);
  const Sharding partial{{{"data"}, {}, {}}, {"tensor"}};
  check(
      [&](Context& c, std::span<const Array> in) {
        const Array sum = add(c, in[0], in[1]);
        return reshard(c, sum, c.mesh->size() == 1 ? replicated(3) : split);
      },
      partial);
}

TEST(Gradients, AnInputUsedTwiceGetsBoth) {
  const Tensor x = random_tensor({2, 3}, 1);
  on_mesh(Mesh(), [&](Context& c) {
    const Array in = leaf(c, x, replicated(2));
    const Array y = add(c, add(c, in, in), scale(c, in, 2));
    const Tensor seed = random_tensor({2, 3}, 2), before = seed.clone();
    backward(c, std::span(&y, 1), std::span(&seed, 1));
    Tensor want = seed.clone();
    for (float& v : want.span<float>()) v *= 4;
    EXPECT_TRUE(close(in.grad(), want, 1e-6));
    EXPECT_TRUE(identical(seed, before));
  });
}

TEST(Gradients, LeavesAddUpOverBackwardPasses) {  // gradient accumulation
  const Tensor x = random_tensor({2, 3}, 1), seed = random_tensor({2, 3}, 2);
  on_mesh(Mesh(), [&](Context& c) {
    const Array in = leaf(c, x, replicated(2)), other = leaf(c, x, replicated(2));
    for (int pass = 0; pass < 3; ++pass) {
      const Array y = add(c, in, other);
      backward(c, std::span(&y, 1), std::span(&seed, 1));
    }
    Tensor want = seed.clone();
    for (float& v : want.span<float>()) v *= 3;
    EXPECT_TRUE(close(in.grad(), want, 1e-6));
    EXPECT_TRUE(close(other.grad(), want, 1e-6));
    EXPECT_TRUE(identical(seed, random_tensor({2, 3}, 2)));
  });
}

TEST(Gradients, CastRoundsBothWays) {
  const Tensor x = random_tensor({4, 5}, 1);
  on_mesh(Mesh(), [&](Context& c) {
    const Array in = leaf(c, x, replicated(2)), y = cast(c, in, DType::bf16);
    EXPECT_TRUE(identical(y.tensor(), x.cast(DType::bf16)));
    const Tensor seed = random_tensor({4, 5}, 2).cast(DType::bf16);
    backward(c, std::span(&y, 1), std::span(&seed, 1));
    EXPECT_TRUE(identical(in.grad(), seed.cast(DType::f32)));
    EXPECT_EQ(cast(c, in, DType::f32).value(), in.value());
  });
}

// Ranks that share a weight read one copy of its cast; of a small one each makes its own.
TEST(Gradients, CastOfASharedWeightIsMadeOnce) {
  for (const std::int64_t rows : {4, 1001}) {
    const Tensor x = random_tensor({rows, 333}, 1);
    std::vector<const void*> results(3);
    on_mesh(Mesh({{"data", 3}}), [&](Context& c) {
      const Array in = leaf(c, x, replicated(2));
      in.value()->weight = true;
      in.value()->info.shared = {"data"};
      const Array y = cast(c, in, DType::bf16);
      EXPECT_TRUE(identical(y.tensor(), x.cast(DType::bf16)));
      results[static_cast<std::size_t>(c.rank)] = y.tensor().raw();
      EXPECT_EQ(y.tensor().buffer()->read_only(), rows > 4);
      c.comm->barrier(c.group(Axes{"data"}));
    });
    EXPECT_EQ(results[0] == results[1] && results[1] == results[2], rows > 4);
  }
}

TEST(Gradients, MlaKeyValue) {
  for (bool use_key : {false, true}) {
    check_gradients({.function =
                         [=](Context& c, std::span<const Array> in) {
                           const auto [k, v] = mla_key_value(c, in[0], in[1], 3);
                           return use_key ? k : add(c, v, split_last(c, k, 3).second);
                         },
                     .inputs = {{random_tensor({2, 3, 4, 8}, 1), {{{{"data"}, {}, {"tensor"}, {}}, {}}}},
                                {random_tensor({2, 3, 5}, 2), {{{{"data"}, {}, {}}, {}}}}},
                     .meshes = {kData2Tensor2}});
  }
}

// Any graph: gradients of a network with shared weights, on one rank and on a mesh.
TEST(Gradients, LossSeedsOneOverTheWholeSystem) {
  const Tensor hidden = random_tensor({4, 3, 8}, 8), head = random_tensor({8, 16}, 9);
  const Tensor targets = random_integers({4, 3}, 7, 0, 16), segments = random_integers({4, 3}, 1, 1, 2);
  std::map<std::string, Tensor> want;
  for (const Mesh& mesh : {Mesh(), kData2Tensor2, kTensor4}) {
    Gathered gathered(mesh);
    on_mesh(mesh, [&](Context& c) {
      const Array h = leaf_by_rules(c, hidden, {"activation_batch", "", "activation_embed"});
      const Array w = leaf_by_rules(c, head, {"embed_vocab", "vocab"});
      const auto out = linear_cross_entropy(c, h, w, false, leaf(c, targets, replicated(2)),
                                            leaf(c, segments, replicated(2)), {.count = 12});
      backward(c, out.loss);
      gathered.put_grad(c, "hidden", h);
      gathered.put_grad(c, "head", w);
    });
    for (const char* name : {"hidden", "head"}) {
      if (want.count(name) == 0) want[name] = gathered.get(name);
      EXPECT_TRUE(close(gathered.get(name), want.at(name), 1e-5)) << mesh.to_string();
    }
  }
}

}  // namespace
}  // namespace switchyard
