// Tests the ragged buffer: which rows are dropped, and that ring and all-to-all drop alike under `fair`.
#include <cmath>
#include <numeric>

#include "moe/block_testing.h"

namespace switchyard {
namespace {

using namespace moe_test;

// Rows of the global batch per expert: what a buffer has to hold.
std::vector<std::int64_t> arriving(const Tensor& ids, std::int64_t experts) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(experts), 0);
  for (auto e : ids.span<std::int32_t>()) {
    if (e >= 0) ++rows[static_cast<std::size_t>(e)];
  }
  return rows;
}

TEST(RaggedBuffer, FairDropsTheSameRowsOnRingAndAllToAll) {
  for (Load load : {Load::random, Load::one_hot, Load::empty_experts}) {
    for (double factor : {0.25, 0.7, 1.0, 1.3}) {
      for (const Mesh& mesh : {Mesh({{"expert", 2}}), Mesh({{"expert", 4}}),
                               Mesh({{"data", 2}, {"expert", 2}}), Mesh({{"tensor", 2}, {"expert", 2}})}) {
        Problem p{.load = load, .config = deepseek3(8, 2)};
        p.execution.ragged_buffer_factor = factor;
        const Outcome exchanged = run(p, mesh);
        p.execution.ring = true;
        const Outcome ring = run(p, mesh);
        expect_same(ring, exchanged, 1e-5, mesh.to_string());
      }
    }
  }
}

TEST(RaggedBuffer, EveryRankDropsWhatIsOverItsRoom) {
  for (bool ring : {false, true}) {
    for (DropPolicy policy : {DropPolicy::fair, DropPolicy::prefix}) {
      for (double factor : {0.3, 1.0, 1.5, 4.0}) {
        Problem p{.config = mixtral(8, 3)};
        p.execution.ring = ring;
        p.execution.ragged_buffer_factor = factor;
        p.execution.drop_policy = policy;
        const Outcome got = run(p, Mesh({{"expert", 4}}));
        const auto rows = arriving(got.tensors.at("ids"), 8);
        const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
        EXPECT_EQ(all, 27 * 3);  // of 32 tokens 5 are padding
        const auto room = static_cast<std::int64_t>(std::floor(factor * static_cast<double>(all) / 4));
        for (std::size_t rank = 0; rank < 4; ++rank) {
          const std::int64_t here = rows[2 * rank] + rows[2 * rank + 1];
          EXPECT_EQ(got.dropped[2 * rank] + got.dropped[2 * rank + 1],
                    static_cast<double>(std::max<std::int64_t>(0, here - room)));
        }
      }
    }
  }
}

TEST(RaggedBuffer, TwoAxesOfTokensCountOnce) {  // the room is that of one expert-parallel group
  Problem p{.config = mixtral(4, 2), .gaps = false};
  p.execution.ragged_buffer_factor = 0.5;
  for (bool ring : {false, true}) {
    p.execution.ring = ring;
    const Outcome got = run(p, Mesh({{"data", 2}, {"expert", 2}}));
    double dropped = 0;
    for (double n : got.dropped) dropped += n;
    const double tokens = 8 * 4;
    EXPECT_GE(dropped, tokens * 2 - 4 * std::floor(0.5 * tokens / 2 * 2 / 2));
    EXPECT_LT(dropped, tokens * 2);
  }
}

TEST(RaggedBuffer, DroppedRowsGiveZero) {
  Problem p{.load = Load::one_hot, .config = mixtral(2, 1), .gaps = false};
  p.execution.ragged_buffer_factor = 0.5;
  for (bool ring : {false, true}) {
    p.execution.ring = ring;
    const Outcome got = run(p, Mesh({{"expert", 2}}));
    Problem all = p;
    all.execution.ragged_buffer_factor = -1;
    const Tensor whole = run(all, Mesh()).tensors.at("y"), &y = got.tensors.at("y");
    EXPECT_EQ(got.dropped, (std::vector<double>{24, 0}));
    for (std::int64_t t = 0; t < 32; ++t) {  // the room is for 8 of 32 rows, first come first served
      for (std::int64_t m = 0; m < 8; ++m) {
        const float want = t < 8 ? whole.data<float>()[t * 8 + m] : 0.0f;
        EXPECT_NEAR(y.data<float>()[t * 8 + m], want, 1e-5);
      }
    }
  }
}

TEST(RaggedBuffer, PrefixLosesLaterExpertsOfTheRing) {
  Problem p{.config = mixtral(8, 3), .gaps = false};
  p.execution.ring = true;
  p.execution.ragged_buffer_factor = 0.6;
  p.execution.drop_policy = DropPolicy::prefix;
  const Outcome got = run(p, Mesh({{"expert", 2}}));
  const auto rows = arriving(got.tensors.at("ids"), 8);
  const auto room = static_cast<std::int64_t>(std::floor(0.6 * 32 * 3 / 2));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    std::int64_t left = room;
    for (std::size_t e = 4 * rank; e < 4 * rank + 4; ++e) {
      const std::int64_t kept = std::min(rows[e], left);
      EXPECT_EQ(got.dropped[e], static_cast<double>(rows[e] - kept));
      left -= kept;
    }
  }
}

TEST(Capacity, DropsPerSequenceInTokenOrder) {
  Problem p{
      .load = Load::one_hot, .config = mixtral(4, 1), .gaps = false};  // 4 tokens a sequence, all to expert 0
  p.execution.sparse = false;
  p.execution.capacity_factor = 2;  // max(ceil(4·1/4)·2, 2) = 2 places
  Problem all = p;
  all.execution.capacity_factor = -1;
  const Tensor whole = run(all, Mesh()).tensors.at("y");
  for (const Mesh& mesh : {Mesh(), Mesh({{"expert", 4}}), Mesh({{"data", 2}, {"expert", 2}})}) {
    for (bool without : {false, true}) {
      p.execution.dispatch_without_expert_axes = without;
      const Outcome got = run(p, mesh);
      EXPECT_EQ(got.dropped, (std::vector<double>{16, 0, 0, 0}));
      for (std::int64_t i = 0; i < whole.size(); ++i) {
        const bool kept = i / 8 % 4 < 2;
        EXPECT_NEAR(got.tensors.at("y").data<float>()[i], kept ? whole.data<float>()[i] : 0.0f, 1e-5);
      }
    }
  }
}

TEST(Capacity, OfNoPlacesDropsAll) {
  Problem p{.config = mixtral(4, 1), .gaps = false};
  p.execution.sparse = false;
  p.execution.capacity_factor = 0.5;  // max(1·0.5, 0.5) is no whole place
  const Outcome got = run(p, Mesh({{"expert", 2}}));
  EXPECT_EQ(std::accumulate(got.dropped.begin(), got.dropped.end(), 0.0), 32);
  EXPECT_TRUE(close(got.tensors.at("y"), Tensor::zeros(DType::f32, {8, 4, 8}), 0));
}

TEST(TokenChunks, ThatDoNotDivideAreTheUsersError) {
  Problem p{.config = mixtral(4, 1)};
  p.execution.token_chunks = 3;
  try {
    run(p, Mesh());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Error::Kind::usage);
    EXPECT_NE(std::string(e.what()).find("num_moe_token_chunks"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace switchyard
