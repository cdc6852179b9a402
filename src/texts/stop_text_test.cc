#include "texts/stop_text.h"

#include <gtest/gtest.h>

namespace switchyard::texts {
namespace {

TEST(StopText, KeepsWhatMayBeABeginning) {
  StopText stop({"end", "\n\n"});
  EXPECT_EQ(stop.add("one e"), "one ");
  EXPECT_EQ(stop.add("n"), "");
  EXPECT_EQ(stop.add("vy\n"), "envy");
  EXPECT_EQ(stop.add("two\n"), "\ntwo");
  EXPECT_FALSE(stop.found());
  EXPECT_EQ(stop.add("\nmore"), "");
  EXPECT_TRUE(stop.found());
  EXPECT_EQ(stop.finish(), "");
  EXPECT_EQ(stop.add("after"), "");

  StopText never({"abc"});
  EXPECT_EQ(never.add("xab"), "x");
  EXPECT_EQ(never.finish(), "ab");
  StopText first({"bcd", "c"});
  EXPECT_EQ(first.add("abc"), "ab");  // bcd begins before c, but c is whole first
  EXPECT_TRUE(first.found());
  EXPECT_EQ(StopText({}).add("all"), "all");
}

}  // namespace
}  // namespace switchyard::texts
