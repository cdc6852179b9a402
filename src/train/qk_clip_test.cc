// Tests QK-clip's factors on weights; a stored case of `switchyard verify` tests their effect.
#include "train/qk_clip.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace switchyard {
namespace {

ModelConfig latent_model(std::int64_t predictions) {
  return model_config(Config::from_map({{"decoder_block", "deepseek"},
                                        {"attention_type", "mla"},
                                        {"base_num_decoder_layers", 3},
                                        {"first_num_dense_layers", 1},
                                        {"num_experts", 4},
                                        {"num_experts_per_tok", 2},
                                        {"routed_score_func", "sigmoid"},
                                        {"qk_nope_head_dim", 2},
                                        {"qk_rope_head_dim", 2},
                                        {"v_head_dim", 3},
                                        {"mtp_num_layers", predictions}},
                                       {}));
}

TEST(QkClip, LayersOfAKindAreOneStack) {
  const ModelConfig m = latent_model(2);
  EXPECT_EQ(stack_of(m, 0), 0u);
  EXPECT_EQ(stack_of(m, 1), 1u);
  EXPECT_EQ(stack_of(m, 2), 1u);
  EXPECT_EQ(stack_of(m, 3), 2u);
  EXPECT_EQ(stack_of(m, 4), 3u);
}

TEST(QkClip, FactorsOfHeadsAboveTheThreshold) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const std::vector<float> scores{kNone, -30, 0, 6.5f, 14};
  const std::vector<float> factors = clip_factors(scores, 7);
  ASSERT_EQ(factors.size(), 5u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(factors[i], 1) << scores[i];
  EXPECT_NEAR(factors[4], 0.5, 1e-6);
  EXPECT_EQ(largest_of({{kNone, 2}, {3, kNone}}), 3);
}

TEST(QkClip, RotatedColumnsTakeTheWholeFactorAndValuesNone) {
  const ModelConfig m = latent_model(0);
  const std::vector<float> factors{0.25f, 1};
  EXPECT_EQ(clip_columns(m, true, factors), (std::vector<float>{0.5f, 0.5f, 0.25f, 0.25f, 1, 1, 1, 1}));
  EXPECT_EQ(clip_columns(m, false, factors), (std::vector<float>{0.5f, 0.5f, 1, 1, 1, 1, 1, 1, 1, 1}));
}

}  // namespace
}  // namespace switchyard
