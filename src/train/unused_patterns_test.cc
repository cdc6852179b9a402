#include "train/unused_patterns.h"

#include <gtest/gtest.h>

#include "models/model_config.h"

namespace switchyard {
namespace {

TEST(UnusedPatterns, AreNamedOneByOne) {
  const auto lines = [](const std::string& setting) {
    const Config config = Config::from_args(std::vector<std::string>{"base_num_decoder_layers=1", setting});
    return unused_patterns(config, parameter_specs(model_config(config)));
  };
  EXPECT_TRUE(lines("steps=1").empty());
  EXPECT_TRUE(lines("adamw_mask=norm,embedding").empty());
  const auto masks = lines("trainable_parameters_mask=norm,atention");
  ASSERT_EQ(masks.size(), 1u);
  EXPECT_NE(masks[0].find("trainable_parameters_mask: 'atention'"), std::string::npos);
  ASSERT_EQ(lines("adamw_mask=wings").size(), 1u);
  EXPECT_TRUE(lines("weight_decay_exclude=*norm*").empty());
  EXPECT_EQ(lines("weight_decay_exclude=norm").size(), 1u);  // a glob is for the whole name
}

}  // namespace
}  // namespace switchyard
