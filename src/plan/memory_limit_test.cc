// Tests the least memory that a process needs, and the early refusal of a run that cannot fit.
#include "plan/memory_limit.h"

#include <gtest/gtest.h>

#include <string>

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

// The limits that batch systems set count like the machine's memory, and take stacks, too.
TEST(MemoryLimit, LimitsOfAddressesCount) {
  constexpr std::int64_t kGib = std::int64_t{1} << 30;
  const PlannedMemory planned{.weights = kGib, .peak = 2 * kGib, .all_weights = kGib};
  const auto lacking = [&](std::int64_t bytes, std::int64_t left, std::int64_t ranks = 1) {
    return lacking_memory(planned, ranks, 2, {bytes, AddressLimit{left, "the limit (ulimit -v)"}});
  };
  const std::int64_t stacks = bytes_of_stacks(2, 1);
  EXPECT_EQ(lacking_memory(planned, 1, 2, {2 * kGib, {}}), "");
  EXPECT_EQ(lacking_memory(planned, 1, 2, {kGib, {}}), "2.00 GiB of 1.00 GiB");
  EXPECT_EQ(lacking_memory(planned, 1, 2, {0, {}}),
            "2.00 GiB of 0.0 KiB");  // nothing left is no lack of limits
  EXPECT_EQ(lacking(4 * kGib, 2 * kGib + stacks), "");
  EXPECT_NE(lacking(4 * kGib, kGib).find("of 1.00 GiB that the limit (ulimit -v) leaves"), std::string::npos);
  EXPECT_NE(lacking(4 * kGib, 2 * kGib + stacks - 1).find("stacks"), std::string::npos);
  const std::int64_t many = bytes_of_stacks(2, 512);
  EXPECT_NE(lacking_memory({.weights = 1, .peak = 1, .all_weights = 1}, 512, 2,
                           {64 * kGib, AddressLimit{many + many / 2, "the limit"}}),
            "");
  // Weights are there once; each rank has a stack of 8 MiB.
  EXPECT_EQ(lacking(64 * kGib, 2 * many, 512), "");
  EXPECT_NE(lacking(64 * kGib, 2 * stacks, 512).find("512 ranks of a process"), std::string::npos);
}

// What keeps a plan from its end other than the model is passed on or told, never taken for enough memory.
TEST(MemoryLimit, PassesOnWhatAPlanRefuses) {
  EXPECT_THROW(require_training({"dataset_type=synthetic", "per_device_batch_size=0.5"}), Error);
}

}  // namespace
}  // namespace switchyard
