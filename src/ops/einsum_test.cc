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

// One `a` with two weights, of which the second has other sizes of the labels that only weights have.
void check_two_weights(const Mesh& mesh, const std::vector<std::int64_t>& lengths, std::uint32_t seed) {
  Chooser choose(seed);
  for (const std::string text :
       {"BSM,MH->BSH", "BSM,MND->BSND", "BSND,NDM->BSM", "BSM,EMH->EBSH", "ABC,AC->BA"}) {
    const EinsumSpec spec = parse_einsum(text);
    for (int i = 0; i < 6; ++i) {
      std::map<char, std::int64_t> sizes[2];
      for (char l : spec.a + spec.b) sizes[0].emplace(l, choose.of(lengths));
      sizes[1] = sizes[0];
      for (char l : spec.b)
        if (spec.a.find(l) == std::string::npos) sizes[1][l] = choose.of(lengths);
      const Tensor a = random_tensor(shape_of(spec.a, sizes[0]), 1);
      const Sharding in_a = choose.sharding(mesh, a.shape(), true);
      Tensor b[2], dy[2];
      Sharding in_b[2], want[2];
      for (std::size_t of = 0; of < 2; ++of) {
        const auto number = static_cast<std::uint32_t>(of);
        b[of] = random_tensor(shape_of(spec.b, sizes[of]), 2 + number);
        dy[of] = random_tensor(shape_of(spec.out, sizes[of]), 4 + number);
        in_b[of] = choose.sharding(mesh, b[of].shape(), true);
        want[of] = choose.sharding(mesh, dy[of].shape(), false);
      }
      const bool both = i % 3 != 0;  // are used
      const std::string names[] = {"0", "1"};
      Gathered gathered(mesh);
      on_mesh(mesh, [&](Context& c) {
        const Array x = leaf(c, a, in_a), w[] = {leaf(c, b[0], in_b[0]), leaf(c, b[1], in_b[1])};
        const Sharding* const wants[] = {&want[0], i % 2 == 0 ? &want[1] : nullptr};
        const std::vector<Array> y = einsums(c, text, x, w, wants);
        std::vector<Tensor> seeds;
        for (std::size_t of = 0; of < 2; ++of) {
          gathered.put(c, "y" + names[of], y[of]);
          seeds.push_back(block_of(mesh, c.rank, dy[of], dual(mesh, y[of].sharding())));
        }
        backward(c, std::span(y).first(both ? 2 : 1), std::span<const Tensor>(seeds).first(both ? 2 : 1));
        gathered.put_grad(c, "da", x);
        gathered.put_grad(c, "db0", w[0]);
        if (both) gathered.put_grad(c, "db1", w[1]);
        EXPECT_EQ(w[1].grad().defined(), both);
      });
      SCOPED_TRACE(text + " on " + mesh.to_string() + (both ? ", both used" : ", one used"));
      const EinsumSpec back{spec.out, spec.b, spec.a};
      Tensor da = naive(back, sizes[0], dy[0], b[0]);
      if (both) {
        const Tensor more = naive(back, sizes[1], dy[1], b[1]);
        for (std::int64_t at = 0; at < da.size(); ++at) da.data<float>()[at] += more.data<float>()[at];
      }
      EXPECT_TRUE(close(gathered.get("da"), da, 2e-5));
      for (std::size_t of = 0; of < 2; ++of) {
        EXPECT_TRUE(close(gathered.get("y" + names[of]), naive(spec, sizes[of], a, b[of]), 2e-5));
        if (of == 0 || both) {
          EXPECT_TRUE(close(gathered.get("db" + names[of]),
                            naive({spec.a, spec.out, spec.b}, sizes[of], a, dy[of]), 2e-5));
        }
      }
    }
  }
}

TEST(Einsum, OfSeveralWeightsEqualsTheNaiveLoop) {
  check_two_weights(Mesh(), {1, 2, 3, 5}, 31);
  check_two_weights(Mesh({{"data", 2}}), {2, 4, 6}, 32);
  check_two_weights(Mesh({{"fsdp", 2}, {"tensor", 2}}), {2, 4, 6}, 33);
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
