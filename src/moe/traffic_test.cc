// Tests the strategies' traffic: the counters of all ranks
// equal the formulas of docs/design/traffic.md, byte for byte.
#include "moe/block_testing.h"

namespace switchyard {
namespace {

using namespace moe_test;

using Traffic = std::map<std::string, std::int64_t>;  // "kind axis" -> bytes sent by all ranks

struct Sizes {
  std::int64_t batch = 8, length = 4, width = 8, hidden = 16, experts = 8, slots = 2;
  DType dtype = DType::f32;
  std::int64_t tokens() const { return batch * length; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(size_of(dtype)); }
  std::int64_t tokens_bytes() const { return tokens() * width * bytes(); }          // x or y
  std::int64_t weight_bytes() const { return experts * width * hidden * bytes(); }  // one of three
};

using Looks = std::map<std::string, std::int64_t>;  // what the host read -> how often

struct Sent {
  Traffic forward, both;       // both: forward and backward
  std::int64_t rows_away = 0;  // rows whose expert is on another rank of the expert axis
  Looks looks_forward, looks;  // of each rank: all ranks look alike
  std::int64_t passes = 0;
};

Traffic counts_of(const Communicator& comm) {
  Traffic counts;
  for (const auto& count : comm.counts()) counts[count.kind + " " + count.axis] += count.bytes;
  return counts;
}

void add(const Traffic& from, Traffic& to) {
  for (const auto& [name, bytes] : from) to[name] += bytes;
}

Sent traffic(const Sizes& n, const MoeExecution& execution, const Mesh& mesh) {
  const MoeConfig config = mixtral(n.experts, n.slots);
  const std::int64_t m = n.width, h = n.hidden, e = n.experts;
  std::vector<Sent> of_rank(static_cast<std::size_t>(mesh.size()));
  on_mesh(mesh, [&](Context& c) {
    const auto by_rules = [&](const Shape& shape, std::uint32_t seed, const std::vector<std::string>& dims) {
      return leaf_by_rules(c, random_tensor(shape, seed), dims, true, n.dtype);
    };
    MoeWeights w;
    w.gate.weight = leaf(c, random_tensor({m, e}, 1), replicated(2));
    w.wi_0.weight = never_save(by_rules({e, m, h}, 2, {"exp", "embed_moe", "mlp_moe"}));
    w.wi_1.weight = never_save(by_rules({e, m, h}, 3, {"exp", "embed_moe", "mlp_moe"}));
    w.wo.weight = never_save(by_rules({e, h, m}, 4, {"exp", "mlp_moe", "embed_moe"}));
    const Array x = by_rules({n.batch, n.length, m}, 5,
                             {"activation_batch", "activation_norm_length", "activation_embed"});
    const Array segments = leaf_by_rules(c, random_integers({n.batch, n.length}, 6, 1, 2),
                                         {"activation_batch", "activation_norm_length"});
    const MoeOutput out = moe_block(c, config, execution, w, x, segments, 0, 0);
    Sent& sent = of_rank[static_cast<std::size_t>(c.rank)];
    sent.forward = counts_of(*c.comm);
    sent.looks_forward = c.host_reads.counts();
    sent.passes = out.load.passes;
    const Tensor seed =
        block_of(mesh, c.rank, random_tensor(x.shape(), 7), dual(mesh, out.y.sharding())).cast(n.dtype);
    backward(c, std::span(&out.y, 1), std::span(&seed, 1));
    sent.both = counts_of(*c.comm);
    sent.looks = c.host_reads.counts();
    const std::int64_t here = e / mesh.axis_size("expert");
    for (const std::int32_t id : out.routing.ids.tensor().span<std::int32_t>())
      sent.rows_away += id / here == mesh.coordinate(c.rank, "expert") ? 0 : 1;
  });
  Sent all;
  all.looks_forward = of_rank[0].looks_forward;
  all.looks = of_rank[0].looks;
  all.passes = of_rank[0].passes;
  for (const Sent& one : of_rank) {
    EXPECT_TRUE(one.looks_forward == all.looks_forward && one.looks == all.looks) << "ranks look differently";
    add(one.forward, all.forward);
    add(one.both, all.both);
    all.rows_away += one.rows_away;
    EXPECT_EQ(one.passes, all.passes);
  }
  return all;
}

MoeExecution plain() {
  return {.float32_gate_logits = true};
}

std::vector<Sizes> several() {
  return {{},
          {.batch = 16, .length = 3, .width = 12, .hidden = 8, .experts = 16, .slots = 5},
          {.width = 16, .slots = 3, .dtype = DType::bf16}};
}

// What the dispatch reads; what else a layer reads is named elsewhere.
Looks of_dispatch(Looks looks) {
  std::erase_if(looks, [](const auto& look) {
    return look.first != "rows per expert" && look.first != "dropped rows";
  });
  return looks;
}

TEST(HostReads, ALayerLooksAtItsRowsOnceWhereItMust) {
  const Sizes n;
  const Looks none, once{{"rows per expert", 1}};
  const auto expect = [&](const MoeExecution& execution, int experts, const Looks& expected) {
    const Sent sent = traffic(n, execution, Mesh({{"expert", experts}}));
    EXPECT_EQ(of_dispatch(sent.looks_forward), expected) << "forward";
    EXPECT_EQ(of_dispatch(sent.looks), expected) << "forward and backward";
  };
  MoeExecution execution = plain();
  expect(execution, 1, none);
  expect(execution, 4, once);
  execution.ring = true;
  expect(execution, 4, once);
  execution.ragged_buffer_factor = 0.5;
  expect(execution, 1, once);
  expect(execution, 4, once);
  execution.ring = false;
  expect(execution, 4, once);
  execution.sparse = false;
  expect(execution, 4, none);
  execution.capacity_factor = 1;
  expect(execution, 4, {{"dropped rows", 1}});
}

TEST(Traffic, AllToAllSendsRowsThereAndBack) {
  for (const Sizes& n : several()) {
    for (const int p : {2, 4, 8}) {
      const Sent sent = traffic(n, plain(), Mesh({{"expert", p}}));
      const std::int64_t counts = p * (p - 1) * n.experts * 4,
                         rows = sent.rows_away * (2 * n.width * n.bytes() + 4);
      EXPECT_EQ(sent.forward, (Traffic{{"all_gather expert", counts}, {"ragged_all_to_all expert", rows}}));
      EXPECT_EQ(sent.both, (Traffic{{"all_gather expert", counts}, {"ragged_all_to_all expert", 2 * rows}}));
    }
  }
}

TEST(Traffic, RingSendsTokensOnceWhateverTheSlots) {
  MoeExecution execution = plain();
  execution.ring = true;
  for (const Sizes& n : several()) {
    for (const int p : {2, 4, 8}) {
      const Sent sent = traffic(n, execution, Mesh({{"expert", p}}));
      const std::int64_t tokens = (p - 1) * n.tokens_bytes(), decisions = (p - 1) * n.tokens() * n.slots * 8;
      EXPECT_EQ(sent.forward,
                (Traffic{{"all_gather expert", tokens + decisions}, {"reduce_scatter expert", tokens}}));
      // Backward gathers the tokens once more, as it makes the rows again, and the gradient of y.
      EXPECT_EQ(sent.both, (Traffic{{"all_gather expert", 3 * tokens + decisions},
                                    {"reduce_scatter expert", 2 * tokens + decisions / 2}}));
    }
  }
}

// Backward makes each pass again.
TEST(Traffic, PassesSendRowsOnceAndTokensEachTime) {
  MoeExecution execution = plain();
  execution.further_passes = true;
  execution.ragged_buffer_factor = 0.4;
  for (const Sizes& n : several()) {
    for (const int p : {2, 4, 8}) {
      execution.ring = false;
      const Sent exchanged = traffic(n, execution, Mesh({{"expert", p}}));
      EXPECT_GE(exchanged.passes, 3);
      const std::int64_t counts = p * (p - 1) * n.experts * 4, row = n.width * n.bytes(),
                         rows = exchanged.rows_away;
      EXPECT_EQ(exchanged.forward,
                (Traffic{{"all_gather expert", counts}, {"ragged_all_to_all expert", rows * (2 * row + 4)}}));
      EXPECT_EQ(exchanged.both,
                (Traffic{{"all_gather expert", counts}, {"ragged_all_to_all expert", rows * (5 * row + 8)}}));
      execution.ring = true;
      const Sent ring = traffic(n, execution, Mesh({{"expert", p}}));
      EXPECT_EQ(ring.passes, exchanged.passes);
      const std::int64_t tokens = ring.passes * (p - 1) * n.tokens_bytes(),
                         decisions = (p - 1) * n.tokens() * n.slots * 8;
      EXPECT_EQ(ring.forward,
                (Traffic{{"all_gather expert", tokens + decisions}, {"reduce_scatter expert", tokens}}));
      EXPECT_EQ(ring.both, (Traffic{{"all_gather expert", 3 * tokens + decisions},
                                    {"reduce_scatter expert", 2 * tokens + decisions / 2}}));
    }
  }
}

TEST(Traffic, ReplicatedTokensAreOnlySummed) {
  for (const bool ring : {false, true}) {
    MoeExecution execution = plain();
    execution.ring = ring;
    for (Sizes n : several()) {
      n.batch = 1;
      const Sent sent = traffic(n, execution, Mesh({{"expert", 4}}));
      const std::int64_t sums = 2 * 3 * n.tokens_bytes();
      EXPECT_EQ(sent.forward, (Traffic{{"all_reduce expert", sums}}));
      EXPECT_EQ(sent.both, (Traffic{{"all_reduce expert", 2 * sums}}));
    }
  }
}

TEST(Traffic, DenseGathersWeightsOrTokens) {
  MoeExecution execution = plain();
  execution.sparse = false;
  for (const Sizes& n : several()) {
    for (const int p : {2, 4, 8}) {
      const Mesh mesh({{"expert", p}});
      execution.dispatch_without_expert_axes = false;
      const std::int64_t weights = 3 * (p - 1) * n.weight_bytes();
      const Sent whole = traffic(n, execution, mesh);
      EXPECT_EQ(whole.forward, (Traffic{{"all_gather expert", weights}}));
      EXPECT_EQ(whole.both,
                (Traffic{{"all_gather expert", 2 * weights}, {"reduce_scatter expert", weights}}));
      execution.dispatch_without_expert_axes = true;
      const std::int64_t tokens = (p - 1) * n.tokens_bytes(),
                         shares = (p - 1) * n.experts * n.tokens() * 4 / p;
      const Sent split = traffic(n, execution, mesh);
      EXPECT_EQ(split.forward, (Traffic{{"all_gather expert", tokens},
                                        {"all_to_all expert", shares},
                                        {"reduce_scatter expert", tokens}}));
      EXPECT_EQ(split.both, (Traffic{{"all_gather expert", 2 * tokens},
                                     {"all_to_all expert", 2 * shares},
                                     {"reduce_scatter expert", 2 * tokens}}));
    }
  }
}

TEST(Traffic, CapacityMovesWeightsOrTokens) {
  MoeExecution execution = plain();
  execution.sparse = false;
  execution.capacity_factor = 1;
  for (const Sizes& n : several()) {
    for (const int p : {2, 4, 8}) {
      const Mesh mesh({{"expert", p}});
      execution.dispatch_without_expert_axes = false;
      const std::int64_t weights = 3 * (p - 1) * n.weight_bytes();
      const Sent whole = traffic(n, execution, mesh);
      EXPECT_EQ(whole.forward, (Traffic{{"all_gather expert", weights}}));
      EXPECT_EQ(whole.both,
                (Traffic{{"all_gather expert", 2 * weights}, {"reduce_scatter expert", weights}}));
      execution.dispatch_without_expert_axes = true;
      const std::int64_t capacity = (n.length * n.slots + n.experts - 1) / n.experts;
      const std::int64_t places = n.experts * n.batch * capacity;
      const std::int64_t moved = (p - 1) * places * (2 * n.width * n.bytes() + 4) / p;
      const Sent split = traffic(n, execution, mesh);
      EXPECT_EQ(split.forward, (Traffic{{"all_to_all expert", moved}}));
      EXPECT_EQ(split.both, (Traffic{{"all_to_all expert", 2 * moved}}));
    }
  }
}

TEST(Traffic, FsdpGathersWeightsTwiceAndScattersGradients) {
  for (const Sizes& n : several()) {
    for (const int f : {2, 4}) {
      const Sent sent = traffic(n, plain(), Mesh({{"fsdp", f}}));
      const std::int64_t weights = 3 * (f - 1) * n.weight_bytes();
      EXPECT_EQ(sent.forward, (Traffic{{"all_gather fsdp", weights}}));
      EXPECT_EQ(sent.both, (Traffic{{"all_gather fsdp", 2 * weights}, {"reduce_scatter fsdp", weights}}));
    }
  }
}

TEST(Traffic, TensorGathersTokensAndScattersSums) {
  for (const Sizes& n : several()) {
    for (const int q : {2, 4}) {
      const Sent sent = traffic(n, plain(), Mesh({{"tensor", q}}));
      const std::int64_t tokens = (q - 1) * n.tokens_bytes();
      EXPECT_EQ(sent.forward, (Traffic{{"all_gather tensor", tokens}, {"reduce_scatter tensor", tokens}}));
      EXPECT_EQ(sent.both,
                (Traffic{{"all_gather tensor", 2 * tokens}, {"reduce_scatter tensor", 2 * tokens}}));
    }
  }
}

TEST(Traffic, OneRankSendsNothing) {
  for (const bool sparse : {false, true}) {
    MoeExecution execution = plain();
    execution.sparse = sparse;
    EXPECT_TRUE(traffic({}, execution, Mesh()).both.empty());
  }
}

}  // namespace
}  // namespace switchyard
