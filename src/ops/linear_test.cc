// Linear layers: the effect of an adapter, and the gradients with frozen and packed weights.
#include "ops/linear.h"

#include "kernels/packed/packed_weights.h"
#include "ops/einsum.h"
#include "ops/gradient_testing.h"
#include "ops/grouped_product.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

using namespace autograd_test;

constexpr float kScale = 0.5f;

struct Projection {
  std::string spec;
  Shape x, weight, a, b;
  std::vector<Sharding> split_x, split_weight, split_a, split_b;  // on kTensor4
};

const std::vector<Projection>& projections() {
  const Axes tensor{"tensor"};
  static const std::vector<Projection> all{{"BSM,MH->BSH",
                                            {2, 3, 6},
                                            {6, 8},
                                            {6, 2},
                                            {2, 8},
                                            {{{{}, {}, {}}, {}}},
                                            {{{{}, tensor}, {}}},
                                            {{{{}, {}}, {}}},
                                            {{{{}, tensor}, {}}}},
                                           {"BSM,MND->BSND",
                                            {2, 3, 6},
                                            {6, 4, 3},
                                            {6, 2},
                                            {2, 4, 3},
                                            {{{{}, {}, {}}, {}}},
                                            {{{{}, tensor, {}}, {}}},
                                            {{{{}, {}}, {}}},
                                            {{{{}, tensor, {}}, {}}}},
                                           {"BSND,NDM->BSM",
                                            {2, 3, 4, 3},
                                            {4, 3, 6},
                                            {4, 3, 2},
                                            {2, 6},
                                            {{{{}, {}, tensor, {}}, {}}},
                                            {{{tensor, {}, {}}, {}}},
                                            {{{tensor, {}, {}}, {}}},
                                            {{{{}, {}}, {}}}},
                                           {"BSM,EMH->EBSH",
                                            {2, 3, 6},
                                            {4, 6, 5},
                                            {4, 6, 2},
                                            {4, 2, 5},
                                            {{{{}, {}, {}}, {}}},
                                            {{{tensor, {}, {}}, {}}},
                                            {{{tensor, {}, {}}, {}}},
                                            {{{tensor, {}, {}}, {}}}},
                                           {"EBSH,EHM->BSM",
                                            {4, 2, 3, 5},
                                            {4, 5, 6},
                                            {4, 5, 2},
                                            {4, 2, 6},
                                            {{{tensor, {}, {}, {}}, {}}},
                                            {{{tensor, {}, {}}, {}}},
                                            {{{tensor, {}, {}}, {}}},
                                            {{{tensor, {}, {}}, {}}}}};
  return all;
}

TEST(Linear, AnAdapterIsAppliedForwardAndBackward) {
  for (const Projection& p : projections()) {
    SCOPED_TRACE(p.spec);
    const auto adapted = [&](Context& c, std::span<const Array> in) {
      return Linear{in[1], {}, LowRank{in[2], in[3], kScale}}.apply(c, p.spec, in[0]);
    };
    check_gradients({.function = adapted,
                     .inputs = {{random_tensor(p.x, 1), p.split_x},
                                {random_tensor(p.weight, 2), p.split_weight},
                                {random_tensor(p.a, 3), p.split_a},
                                {random_tensor(p.b, 4), p.split_b}},
                     .meshes = {kTensor4}});
  }
}

TEST(Linear, AnAdapterIsALowRankChangeOfTheWeight) {
  for (const Projection& p : projections()) {
    on_mesh(Mesh(), [&](Context& c) {
      const auto in = [&](const Shape& shape, std::uint32_t seed) {
        return leaf(c, random_tensor(shape, seed), replicated(shape.size()));
      };
      const Linear layer{in(p.weight, 2), {}, LowRank{in(p.a, 3), in(p.b, 4), kScale}};
      const Array x = in(p.x, 1), merged = layer.merged(c);
      EXPECT_FALSE(identical(merged.tensor(), layer.weight.tensor()));
      EXPECT_TRUE(close(layer.project(c, p.spec, x).tensor(), einsum(c, p.spec, x, merged).tensor(), 1e-6))
          << p.spec;
      const Linear plain{layer.weight};
      EXPECT_EQ(plain.merged(c).value(), layer.weight.value());
      EXPECT_TRUE(
          identical(plain.project(c, p.spec, x).tensor(), einsum(c, p.spec, x, layer.weight).tensor()));
    });
  }
}

TEST(Linear, AnAdapterAddsNoBiasTwice) {
  on_mesh(Mesh(), [&](Context& c) {
    const auto in = [&](const Shape& shape, std::uint32_t seed) {
      return leaf(c, random_tensor(shape, seed), replicated(shape.size()));
    };
    const Linear layer{in({6, 8}, 2), in({8}, 5), LowRank{in({6, 2}, 3), in({2, 8}, 4), kScale}};
    const Array x = in({2, 3, 6}, 1);
    const Tensor y = layer.apply(c, "BSM,MH->BSH", x).tensor(),
                 y0 = layer.project(c, "BSM,MH->BSH", x).tensor();
    for (std::int64_t i = 0; i < y.size(); ++i)
      EXPECT_EQ(y.data<float>()[i], y0.data<float>()[i] + layer.bias.tensor().data<float>()[i % 8]);
  });
}

// Layers of one x: without an adapter, with one, and of another width; each as it is alone.
TEST(Linear, LayersTogetherAreEachAlone) {
  const Mesh mesh({{"fsdp", 2}, {"tensor", 2}});
  const Sharding layout{{{"fsdp"}, {}, {"tensor"}}, {}};
  std::vector<Tensor> found[2];
  for (const bool together : {false, true}) {
    Gathered gathered(mesh);
    std::vector<std::string> names{"x"};
    on_mesh(mesh, [&](Context& c) {
      const auto in = [&](const Shape& shape, std::uint32_t seed, const Sharding& split) {
        return leaf(c, random_tensor(shape, seed), split);
      };
      const Sharding split{{{"fsdp"}, {"tensor"}}, {}}, inputs{{{"fsdp"}, {}}, {}},
          outputs{{{}, {"tensor"}}, {}};
      const Array x = in({2, 3, 6}, 1, {{{"fsdp"}, {}, {}}, {}});
      const std::vector<Linear> layers{{in({6, 8}, 2, split)},
                                       {in({6, 8}, 3, split), in({8}, 4, {{{"tensor"}}, {}}),
                                        LowRank{in({6, 2}, 5, inputs), in({2, 8}, 6, outputs), kScale}},
                                       {in({6, 4}, 7, split), in({4}, 8, {{{"tensor"}}, {}})}};
      std::vector<Array> ys;
      if (together) {
        ys = apply_each(c, "BSM,MH->BSH", x, layers, layout);
      } else {
        for (const Linear& layer : layers) ys.push_back(layer.apply(c, "BSM,MH->BSH", x, &layout));
      }
      std::vector<Tensor> seeds;
      for (const Array& y : ys)
        seeds.push_back(block_of(mesh, c.rank, random_tensor(y.shape(), 9), dual(mesh, y.sharding())));
      backward(c, ys, seeds);
      gathered.put_grad(c, "x", x);
      for (std::size_t i = 0; i < layers.size(); ++i) {
        gathered.put(c, "y" + std::to_string(i), ys[i]);
        gathered.put_grad(c, "w" + std::to_string(i), layers[i].weight);
      }
    });
    for (std::size_t i = 0; i < 3; ++i)
      names.insert(names.end(), {"y" + std::to_string(i), "w" + std::to_string(i)});
    for (const std::string& name : names) found[together ? 1 : 0].push_back(gathered.get(name));
  }
  for (std::size_t i = 0; i < found[0].size(); ++i) {
    EXPECT_GT(dot(found[0][i], found[0][i]), 0);
    EXPECT_TRUE(close(found[1][i], found[0][i], 1e-6)) << i;
  }
}

Tensor sizes_of(const std::vector<std::int32_t>& sizes) {
  Tensor tensor(DType::i32, {std::ssize(sizes)});
  std::copy(sizes.begin(), sizes.end(), tensor.data<std::int32_t>());
  return tensor;
}

TEST(Linear, AGroupedAdapterIsAppliedForwardAndBackward) {
  const auto adapted = [](Context& c, std::span<const Array> in) {
    return Linear{in[1], {}, LowRank{in[2], in[3], kScale}}.grouped_apply(c, in[0], in[4]);
  };
  check_gradients({.function = adapted,
                   .inputs = {{random_tensor({9, 6}, 1)},
                              {random_tensor({4, 6, 5}, 2)},
                              {random_tensor({4, 6, 2}, 3)},
                              {random_tensor({4, 2, 5}, 4)},
                              {sizes_of({3, 0, 5, 1})}}});
  on_mesh(Mesh(), [&](Context& c) {
    const auto in = [&](const Shape& shape, std::uint32_t seed) {
      return leaf(c, random_tensor(shape, seed), replicated(shape.size()));
    };
    const Linear layer{in({4, 6, 5}, 2), {}, LowRank{in({4, 6, 2}, 3), in({4, 2, 5}, 4), kScale}};
    const Array rows = in({9, 6}, 1), sizes = leaf(c, sizes_of({3, 0, 5, 1}), replicated(1));
    const Array merged = grouped_product(c, rows, layer.merged(c), sizes);
    EXPECT_TRUE(close(layer.grouped_apply(c, rows, sizes).tensor(), merged.tensor(), 1e-6));
  });
}

// x's gradient through packed weights is that through their values. Adapters learn beside them.
TEST(Linear, GradientsPassThroughPackedWeights) {
  const auto packed = [](Context& c, const Shape& shape, DType type) {  // shape: one of matrices, or [M,N,D]
    Shape blocks = shape, matrix = shape;
    const std::size_t inputs = shape.size() == 3 && shape[1] == 2 ? 0 : shape.size() - 2;
    if (inputs == 0 && shape.size() == 3) matrix = {shape[0], shape[1] * shape[2]};
    blocks[inputs] /= block_inputs(type);
    blocks.back() /= kBlockOutputs;
    const Tensor weights(type, blocks);
    Shape flat = matrix;
    flat[flat.size() - 2] /= block_inputs(type);
    flat.back() /= kBlockOutputs;
    EXPECT_TRUE(pack_weights(*c.pool, {random_tensor(matrix, 2).view(), weights.view().reshaped(flat)}));
    const Tensor values(DType::f32, matrix);
    unpack_weights(*c.pool, {weights.view().reshaped(flat), values.view()});
    return std::pair(make_leaf(weights, blocks, replicated(blocks.size()), false), values.reshaped(shape));
  };
  const auto in = [](Context& c, const Shape& shape, std::uint32_t seed, DType dtype = DType::f32) {
    return leaf(c, random_tensor(shape, seed), replicated(shape.size()), true, dtype);
  };
  int compared = 0;
  for (const DType type :
       {DType::packed_int8, DType::packed_int4, DType::packed_int4a, DType::packed_mxfp4}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(std::string(name_of(type)) + " " + std::string(name_of(dtype)));
      on_mesh(Mesh(), [&](Context& c) {
        const auto expect_gradients = [&](const Shape& x_shape, const Shape& weight_shape, const Shape& a,
                                          const Shape& b, const auto& run) {
          const auto [blocks, values] = packed(c, weight_shape, type);
          const Array dense = leaf(c, values, replicated(values.rank()), false, dtype);
          std::vector<Tensor> gradients;
          for (const Array& weight : {blocks, dense}) {
            const Array x = in(c, x_shape, 1, dtype), low = in(c, a, 3), up = in(c, b, 4);
            const Array y = run(Linear{weight, {}, LowRank{low, up, kScale}}, x);
            const Tensor seed = random_tensor(y.tensor().shape(), 7).cast(dtype);
            backward(c, std::span(&y, 1), std::span(&seed, 1));
            EXPECT_FALSE(weight.grad().defined());
            EXPECT_GT(dot(up.grad().cast(DType::f32), up.grad().cast(DType::f32)), 0);
            gradients.push_back(x.grad().cast(DType::f32));
          }
          EXPECT_GT(dot(gradients[1], gradients[1]), 0);
          EXPECT_TRUE(close(gradients[0], gradients[1], dtype == DType::f32 ? 1e-6 : 1e-2));
          ++compared;
        };
        expect_gradients({2, 3, 64}, {64, 32}, {64, 2}, {2, 32},
                         [&](const Linear& l, const Array& x) { return l.apply(c, "BSM,MH->BSH", x); });
        expect_gradients({2, 3, 64}, {64, 2, 16}, {64, 2}, {2, 2, 16},
                         [&](const Linear& l, const Array& x) { return l.apply(c, "BSM,MND->BSND", x); });
        expect_gradients({2, 3, 4, 32}, {4, 32, 16}, {4, 32, 2}, {2, 16},
                         [&](const Linear& l, const Array& x) { return l.apply(c, "BSND,NDM->BSM", x); });
        expect_gradients({2, 3, 64}, {4, 64, 32}, {4, 64, 2}, {4, 2, 32},
                         [&](const Linear& l, const Array& x) { return l.apply(c, "BSM,EMH->EBSH", x); });
        const Array sizes = leaf(c, sizes_of({3, 0, 5, 1}), replicated(1));
        expect_gradients({9, 64}, {4, 64, 32}, {4, 64, 2}, {4, 2, 32},
                         [&](const Linear& l, const Array& x) { return l.grouped_apply(c, x, sizes); });
      });
    }
  }
  EXPECT_EQ(compared, 4 * 2 * 5);
}

}  // namespace
}  // namespace switchyard
