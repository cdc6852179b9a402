// Einsum against a naive loop over global tensors, for every used spec and odd ones, in all layouts.
#include "ops/einsum.h"

#include "autograd/testing.h"
#include "ops/local_einsum.h"

namespace switchyard {
namespace {

using namespace autograd_test;

Shape shape_of(const std::string& labels, const std::map<char, std::int64_t>& sizes) {
  Shape shape;
  for (char l : labels) shape.push_back(sizes.at(l));
  return shape;
}

// out[...] = sum a[...] b[...] by walking all labels, in double.
Tensor naive(const EinsumSpec& spec, const std::map<char, std::int64_t>& sizes, const Tensor& a,
             const Tensor& b) {
  const Shape shape = shape_of(spec.out, sizes);
  std::vector<double> sums(static_cast<std::size_t>(num_elements(shape)), 0.0);
  std::int64_t all = 1;
  for (const auto& [label, n] : sizes) all *= n;
  for (std::int64_t i = 0; i < all; ++i) {
    std::map<char, std::int64_t> at;
    std::int64_t rest = i;
    for (const auto& [label, n] : sizes) {
      at[label] = rest % n;
      rest /= n;
    }
    auto index = [&](const std::string& labels) {
      std::int64_t n = 0;
      for (char l : labels) n = n * sizes.at(l) + at.at(l);
      return n;
    };
    sums[static_cast<std::size_t>(index(spec.out))] +=
        static_cast<double>(a.data<float>()[index(spec.a)]) * b.data<float>()[index(spec.b)];
  }
  Tensor out(DType::f32, shape);
  std::transform(sums.begin(), sums.end(), out.data<float>(), [](double v) { return static_cast<float>(v); });
  return out;
}

const std::vector<std::string>& specs() {
  static const std::vector<std::string> all{
      "BSH,HM->BSM", "BSM,EMH->EBSH", "BSM,ME->BSE", "BSM,MH->BSH", "BSM,MND->BSND", "BSM,MR->BSR",
      "BSM,MV->BSV", "BSM,VM->BSV", "BSND,NDM->BSM", "EBCH,EHM->EBCM", "EBCM,EMH->EBCH", "EBSH,EHM->BSM",
      // rare forms
      "AB,BC->AC", "BA,BC->CA", "ABC,CBD->AD", "ABC,BCD->DA", "AB,AB->AB", "AB,B->A", "A,B->BA", "AB,AB->",
      "BSND,BTND->BNST", "BNST,BTND->BSND", "ABCD,DCE->EBA", "ABC,AC->BA", "ABC,AC->BAC", "EBSH,EBSH->EBS"};
  return all;
}

struct Trial {
  Tensor a, b, dy;
  Sharding in_a, in_b, want;
  bool wanted;
};

void check(const Mesh& mesh, const std::string& text, const std::map<char, std::int64_t>& sizes,
           const Trial& trial) {
  const EinsumSpec spec = parse_einsum(text);
  Gathered gathered(mesh);
  on_mesh(mesh, [&](Context& c) {
    const Array x = leaf(c, trial.a, trial.in_a), w = leaf(c, trial.b, trial.in_b);
    const Array y = einsum(c, text, x, w, trial.wanted ? &trial.want : nullptr);
    EXPECT_TRUE(!trial.wanted || y.sharding() == trial.want) << to_string(y.sharding());
    EXPECT_TRUE(y.sharding().partial.empty());
    gathered.put(c, "y", y);
    const Tensor seed = block_of(mesh, c.rank, trial.dy, dual(mesh, y.sharding()));
    backward(c, std::span(&y, 1), std::span(&seed, 1));
    gathered.put_grad(c, "da", x);
    gathered.put_grad(c, "db", w);
  });
  const std::string what = text + " on " + mesh.to_string() + ": " + to_string(trial.in_a) + " x " +
                           to_string(trial.in_b) + (trial.wanted ? " to " + to_string(trial.want) : "");
  const Tensor y = gathered.get("y"), da = gathered.get("da"), db = gathered.get("db");
  EXPECT_TRUE(close(y, naive(spec, sizes, trial.a, trial.b), 2e-5)) << what;
  EXPECT_TRUE(close(da, naive({spec.out, spec.b, spec.a}, sizes, trial.dy, trial.b), 2e-5)) << what;
  EXPECT_TRUE(close(db, naive({spec.a, spec.out, spec.b}, sizes, trial.a, trial.dy), 2e-5)) << what;
  const double forward = dot(y, trial.dy), size = std::sqrt(dot(y, y) * dot(trial.dy, trial.dy)) + 1e-3;
  EXPECT_NEAR(forward, dot(trial.a, da), 1e-5 * size) << what;
  EXPECT_NEAR(forward, dot(trial.b, db), 1e-5 * size) << what;
}

void check_all(const Mesh& mesh, const std::vector<std::int64_t>& lengths, int trials, std::uint32_t seed) {
  Chooser choose(seed);
  for (const auto& text : specs()) {
    const EinsumSpec spec = parse_einsum(text);
    for (int i = 0; i < trials; ++i) {
      std::map<char, std::int64_t> sizes;
      for (char l : spec.a + spec.b) sizes.emplace(l, choose.of(lengths));
      const Shape a = shape_of(spec.a, sizes), b = shape_of(spec.b, sizes), y = shape_of(spec.out, sizes);
      Trial trial{random_tensor(a, 1),
                  random_tensor(b, 2),
                  random_tensor(y, 3),
                  choose.sharding(mesh, a, true),
                  choose.sharding(mesh, b, true),
                  choose.sharding(mesh, y, false),
                  choose.below(3) != 0};
      check(mesh, text, sizes, trial);
    }
  }
}

TEST(Einsum, EqualsTheNaiveLoopOnOneRank) {
  check_all(Mesh(), {1, 2, 3, 5, 7}, 6, 21);
}
TEST(Einsum, OnTwoRanks) {
  check_all(Mesh({{"data", 2}}), {1, 2, 4, 6}, 5, 22);
}
TEST(Einsum, OnFourRanks) {
  check_all(Mesh({{"fsdp", 2}, {"tensor", 2}}), {2, 4, 6}, 5, 23);
}
TEST(Einsum, OnEightRanks) {
  check_all(Mesh({{"data", 2}, {"fsdp", 2}, {"tensor", 2}}), {4, 6}, 3, 24);
}

TEST(Einsum, EmptyOperandsGiveZeros) {
  on_mesh(Mesh(), [&](Context& c) {
    const Array a = leaf(c, Tensor(DType::f32, {3, 0}), replicated(2)),
                b = leaf(c, Tensor(DType::f32, {0, 4}), replicated(2));
    const Array y = einsum(c, "AK,KB->AB", a, b);
    EXPECT_TRUE(identical(y.tensor(), Tensor::zeros(DType::f32, {3, 4})));
    const Array none = einsum(c, "AK,KB->AB", leaf(c, Tensor(DType::f32, {0, 5}), replicated(2)),
                              leaf(c, random_tensor({5, 4}, 1), replicated(2)));
    EXPECT_EQ(none.tensor().size(), 0);
  });
}

TEST(Einsum, Bfloat16RoundsOnceFromFp32Sums) {
  const Tensor a = random_tensor({6, 5, 32}, 1), b = random_tensor({32, 9}, 2);
  on_mesh(Mesh(), [&](Context& c) {
    const Array x = leaf(c, a, replicated(3), true, DType::bf16),
                w = leaf(c, b, replicated(2), true, DType::bf16);
    const Tensor y = einsum(c, "BSM,MH->BSH", x, w).tensor().cast(DType::f32);
    const Tensor exact = naive(parse_einsum("BSM,MH->BSH"), {{'B', 6}, {'S', 5}, {'M', 32}, {'H', 9}},
                               x.tensor().cast(DType::f32), w.tensor().cast(DType::f32));
    EXPECT_TRUE(close(y, exact, 4e-3));
  });
}

// FSDP and TP as consequences of the layouts: which collectives one product costs, forward and backward.
TEST(Einsum, CostsTheClassicalCollectives) {
  const Mesh mesh({{"fsdp", 2}, {"tensor", 2}});
  const Tensor x = random_tensor({4, 2, 8}, 1), up = random_tensor({8, 16}, 2),
               down = random_tensor({16, 8}, 3);
  on_mesh(mesh, [&](Context& c) {
    auto took = [&] {
      std::multiset<std::string> calls;
      for (const auto& count : c.comm->counts()) {
        for (int i = 0; i < count.calls; ++i) calls.insert(count.kind + " " + count.axis);
      }
      c.comm->reset_counts();
      return calls;
    };
    using Calls = std::multiset<std::string>;
    const Sharding tokens{{{"fsdp"}, {}, {}}, {}}, hidden{{{"fsdp"}, {}, {"tensor"}}, {}};
    const Array in = leaf(c, x, tokens);
    const Array h = einsum(c, "BSM,MH->BSH", in, leaf(c, up, {{{"fsdp"}, {"tensor"}}, {}}), &hidden);
    EXPECT_EQ(took(), Calls({"all_gather fsdp"}));
    const Array y = einsum(c, "BSH,HM->BSM", h, leaf(c, down, {{{"tensor"}, {"fsdp"}}, {}}), &tokens);
    EXPECT_EQ(took(), Calls({"all_gather fsdp", "all_reduce tensor"}));
    const Tensor seed = block_of(mesh, c.rank, random_tensor(x.shape(), 4), dual(mesh, tokens));
    backward(c, std::span(&y, 1), std::span(&seed, 1));
    EXPECT_EQ(took(), Calls({"all_reduce tensor", "reduce_scatter fsdp", "reduce_scatter fsdp"}));
  });
}

}  // namespace
}  // namespace switchyard
