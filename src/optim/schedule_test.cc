#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"

namespace switchyard {
namespace {

// Expects the rates that the reference logged in float32.
void expect_rates(const ScheduleConfig& config, const std::vector<double>& rates) {
  check(config);
  for (std::size_t step = 0; step < rates.size(); ++step) {
    EXPECT_NEAR(learning_rate(config, static_cast<std::int64_t>(step)), rates[step],
                2e-7 * rates[step] + 1e-10)
        << step;
  }
}

ScheduleConfig config_of(const std::string& type, std::int64_t steps, double warmup, double decay = 0.1) {
  ScheduleConfig config;
  config.type = type;
  config.learning_rate = 0.003;
  config.schedule_steps = steps;
  config.warmup_steps_fraction = warmup;
  config.wsd_decay_steps_fraction = decay;
  return config;
}

// Golden runs mixtral_1dev, mixtral_cf125_1dev and deepseek2_1dev.
TEST(Schedule, CosineFollowsTheReference) {
  expect_rates(config_of("cosine", 10, 0.1),
               {0.0, 0.003000000026077032, 0.0028972371947020292, 0.0026045942213386297,
                0.0021666225511580706, 0.0016499998746439815, 0.001133377430960536, 0.0006954058771952987,
                0.0004027626710012555, 0.0003000000142492354, 0.0, 0.0});
  expect_rates(config_of("cosine", 10, 0.3),
               {0.0, 0.0010000001639127731, 0.0020000000949949026, 0.003000000026077032,
                0.0028191343881189823, 0.0023250000085681677, 0.0016499998746439815, 0.000974999915342778,
                0.00048086573951877654, 0.0003000000142492354});
  expect_rates(config_of("cosine", 7, 0.1),
               {0.003000000026077032, 0.0028191343881189823, 0.0023250000085681677, 0.0016499998746439815,
                0.000974999915342778, 0.00048086573951877654, 0.0003000000142492354, 0.0, 0.0, 0.0});
}

TEST(Schedule, WarmUpStableDecay) {
  ScheduleConfig config = config_of("wsd", 10, 0.2, 0.4);
  expect_rates(config, {0, 0.0015, 0.003, 0.003, 0.003, 0.003, 0.003, 0.0021, 0.0012, 0.0003, 0, 0});
  config.wsd_decay_style = "cosine";
  // (1 + cos(pi/3)) / 2 = 3/4, (1 + cos(2 pi/3)) / 2 = 1/4
  expect_rates(config, {0, 0.0015, 0.003, 0.003, 0.003, 0.003, 0.003, 0.002325, 0.000975, 0.0003, 0});
}

TEST(Schedule, ShortPhases) {
  expect_rates(config_of("cosine", 1, 0.0), {0.0003, 0});
  expect_rates(config_of("cosine", 4, 1.0), {0, 0.00075, 0.0015, 0.00225, 0});
  expect_rates(config_of("wsd", 2, 0.0, 0.5), {0.003, 0.003, 0});
  expect_rates(config_of("wsd", 3, 0.0, 0.0), {0.003, 0.003, 0.003, 0});
  expect_rates(config_of("cosine", 0, 0.1), {0, 0});
  ScheduleConfig cosine = config_of("wsd", 2, 0.0, 0.5);
  cosine.wsd_decay_style = "cosine";
  expect_rates(cosine, {0.003, 0.0003, 0});
}

std::string error_of(const ScheduleConfig& config) {
  try {
    check(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    return error.what();
  }
  return "no error";
}

TEST(Schedule, ErrorsNameTheKey) {
  EXPECT_EQ(error_of(config_of("linear", 10, 0.1)),
            "[optim] expected lr_schedule_type to be cosine or wsd, got 'linear'");
  EXPECT_EQ(error_of(config_of("cosine", 10, 1.5)),
            "[optim] expected warmup_steps_fraction between 0 and 1, got 1.5");
  EXPECT_NE(error_of(config_of("cosine", 10, NAN)).find("warmup_steps_fraction"), std::string::npos);
  EXPECT_NE(error_of(config_of("cosine", -1, 0.1)).find("learning_rate_schedule_steps"), std::string::npos);
  EXPECT_EQ(error_of(config_of("wsd", 10, 0.6, 0.6)),
            "[optim] expected warm-up and decay to fit into the schedule, got 6 + 6 of 10 steps; lower "
            "warmup_steps_fraction=0.6 or wsd_decay_steps_fraction=0.6");
  ScheduleConfig config = config_of("wsd", 10, 0.1);
  config.wsd_decay_style = "square";
  EXPECT_NE(error_of(config).find("wsd_decay_style"), std::string::npos);
  config = config_of("wsd", 10, 0.1);
  config.learning_rate = -1;
  EXPECT_NE(error_of(config).find("learning_rate to be at least 0"), std::string::npos);
}

}  // namespace
}  // namespace switchyard
