#include "core/address_limit.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>

#include "core/limited_testing.h"

namespace switchyard {
namespace {

constexpr rlim_t kTebibyte = rlim_t{1} << 40;

TEST(AddressLimit, IsNoneWithoutLimits) {
  const Limited addresses(RLIMIT_AS, RLIM_INFINITY), data(RLIMIT_DATA, RLIM_INFINITY);
  EXPECT_FALSE(address_limit());
}

TEST(AddressLimit, IsTheTighterOneLessWhatIsUsed) {
  const Limited addresses(RLIMIT_AS, 64 * kTebibyte), data(RLIMIT_DATA, RLIM_INFINITY);
  const auto before = address_limit();
  ASSERT_TRUE(before);
  EXPECT_NE(std::string(before->name).find("ulimit -v"), std::string::npos);
  EXPECT_LT(before->left, static_cast<std::int64_t>(64 * kTebibyte));
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  void* const range =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(range, MAP_FAILED);
  EXPECT_NEAR(static_cast<double>(before->left - address_limit()->left), static_cast<double>(kBytes), 1e7);
  ::munmap(range, kBytes);
  const Limited tighter(RLIMIT_DATA, kTebibyte);
  const auto after = address_limit();
  ASSERT_TRUE(after);
  EXPECT_NE(std::string(after->name).find("ulimit -d"), std::string::npos);
  EXPECT_LE(after->left, static_cast<std::int64_t>(kTebibyte));
}

TEST(AddressLimit, StacksOfThreadsAndRanks) {
  const std::int64_t one = bytes_of_stacks(1, 1), stack = bytes_of_stacks(2, 1) - one;
  EXPECT_GT(stack, 0);
  EXPECT_EQ(bytes_of_stacks(1, 4) - one, std::int64_t{4} << 23);
}

}  // namespace
}  // namespace switchyard
