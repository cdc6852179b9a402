// Tests the least memory that a process needs, and the early refusal of a run that cannot fit.
#include "plan/memory_limit.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace switchyard {
namespace {

TEST(MemoryLimit, RanksOfAProcessShareWeights) {
  EXPECT_EQ(least_memory_of_process({.weights = 100, .peak = 450, .all_weights = 100}, 1), 450);
  // Whole weights on both ranks are there once; each may hold all of them, gathered, for a while.
  EXPECT_EQ(least_memory_of_process({.weights = 100, .peak = 450, .all_weights = 100}, 2), 100 + 2 * 250);
  EXPECT_EQ(least_memory_of_process({.weights = 25, .peak = 60, .all_weights = 100}, 4), 100);
}

void require_training(const std::vector<std::string>& settings) {
  require_memory_to_train(Config::from_args(settings), *one_process());
}

TEST(MemoryLimit, TrainingThatCannotFitIsRefused) {
  const std::vector<std::string> huge{"model_name=deepseek3-671b", "per_device_batch_size=1",
                                      "max_target_length=128", "dataset_type=synthetic"};
  try {
    require_training(huge);
    FAIL() << "a machine of 8 TiB";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    EXPECT_TRUE(std::string(error.what()).starts_with("[train] memory of a rank: "));
    EXPECT_NE(std::string(error.what()).find("(does not fit)"), std::string::npos);
  }
  std::vector<std::string> anyway = huge;
  anyway.push_back("ignore_memory_limit=true");
  require_training(anyway);
  require_training({"dataset_type=synthetic"});
}

}  // namespace
}  // namespace switchyard
