#include "core/running_clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/suspended_testing.h"

namespace switchyard {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

TEST(RunningClock, GoesAsTheSteadyClockWhileTheProcessRuns) {
  const auto begin = RunningClock::now();
  const auto steady = steady_clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  const double ran = duration<double>(RunningClock::now() - begin).count(),
               real = duration<double>(steady_clock::now() - steady).count();
  EXPECT_LE(ran, real + 0.01);
  EXPECT_GE(ran, 0.5);
  EXPECT_NEAR(duration<double>(RunningClock::steady(RunningClock::now() + std::chrono::seconds(3)) -
                               steady_clock::now())
                  .count(),
              3, 0.1);
}

TEST(RunningClock, StandsStillWhileTheProcessIsStopped) {
  const auto begin = RunningClock::now();
  const auto steady = steady_clock::now();
  be_suspended(1000);
  const double ran = duration<double>(RunningClock::now() - begin).count(),
               real = duration<double>(steady_clock::now() - steady).count();
  EXPECT_GE(real, 1);
  EXPECT_LE(ran, real - 0.7);
}

}  // namespace
}  // namespace switchyard
