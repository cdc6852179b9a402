// Tests folders with settings that are easily overlooked: their logits are those of transformers 5.24.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "checkpoint/safetensors.h"
#include "convert/logits.h"
#include "core/testing.h"
#include "models/families/hub_source.h"

namespace switchyard {
namespace {

// The three folders have YaRN in rope_scaling beside plain rope_parameters, windows in a qwen3_moe, and an
// untied head although tie_word_embeddings says true.
TEST(HubSettings, LogitsAreThoseOfTransformers) {
  for (const char* name : {"rope-scaling", "windows", "own-head"}) {
    SCOPED_TRACE(name);
    const std::string folder = std::string(kSourceFolder) + "/tests/golden/hub_settings/" + name;
    const SafetensorsFile expected = SafetensorsFile::open(folder + "/expected.safetensors");
    const Tensor want = expected.read("logits"), got = stored_logits_of(folder, expected.read("tokens"));
    ASSERT_EQ(got.size(), want.size());
    float error = 0, largest = 0;
    for (std::int64_t i = 0; i < want.size(); ++i) {
      error = std::max(error, std::abs(got.data<float>()[i] - want.data<float>()[i]));
      largest = std::max(largest, std::abs(want.data<float>()[i]));
    }
    EXPECT_LT(error, 2e-5f * largest);
  }
}

TEST(HubSettings, AHeadOfItsOwnIsTold) {
  const std::string folders = std::string(kSourceFolder) + "/tests/golden/hub_settings/";
  const HubSource own = open_hub_source(folders + "own-head");
  EXPECT_EQ(own.config["tie_word_embeddings"], false);
  ASSERT_EQ(own.notices.size(), 1u);
  EXPECT_NE(own.notices[0].find("taken as a head of its own"), std::string::npos) << own.notices[0];
  EXPECT_TRUE(open_hub_source(folders + "windows").notices.empty());
}

}  // namespace
}  // namespace switchyard
