#include "core/cores.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// A folder that stands for "/" and holds the files of control groups.
class ControlGroups : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::path(::testing::TempDir()) / "switchyard_cores.XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  void file(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  double granted() const { return granted_cores(root_); }

 private:
  fs::path root_;
};

TEST_F(ControlGroups, NoneIsNoLimit) {
  EXPECT_TRUE(std::isinf(granted()));
  file("proc/self/cgroup", "0::/");
  EXPECT_TRUE(std::isinf(granted()));
  file("sys/fs/cgroup/cpu.max", "max 100000");
  EXPECT_TRUE(std::isinf(granted()));
}

TEST_F(ControlGroups, AContainerSeesItsOwnGroupAsTheRoot) {
  file("proc/self/cgroup", "0::/");
  file("sys/fs/cgroup/cpu.max", "250000 100000");
  EXPECT_EQ(granted(), 2.5);
}

TEST_F(ControlGroups, TheLeastOfAllGroupsAboveCounts) {
  file("proc/self/cgroup", "0::/pods/mine/run");
  file("sys/fs/cgroup/pods/mine/run/cpu.max", "800000 100000");
  file("sys/fs/cgroup/pods/mine/cpu.max", "max 100000");
  file("sys/fs/cgroup/pods/cpu.max", "200000 50000");
  EXPECT_EQ(granted(), 4);
}

TEST_F(ControlGroups, VersionOneHasAFolderForItsControllers) {
  file("proc/self/cgroup", "5:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n3:cpuset:/docker/1");
  file("sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us", "-1");
  file("sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_period_us", "100000");
  EXPECT_TRUE(std::isinf(granted()));
  file("sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us", "150000");
  EXPECT_EQ(granted(), 1.5);
}

TEST_F(ControlGroups, AGroupThatIsNotMountedHereIsThatOfTheMount) {
  file("proc/self/cgroup", "4:cpu:/docker/1");
  file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000");
  file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(granted(), 3);
}

TEST(Cores, FollowTheAffinityMask) {
  std::thread([] {  // the mask is that of a thread
    cpu_set_t all, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; CPU_COUNT(&one) == 0; ++i) {
      if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(usable_cores(), 1);
  })
      .join();
}

TEST(Cores, SpreadMemoryIsMemory) {
  constexpr std::size_t kBytes = 1 << 20;
  void* range = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(range, MAP_FAILED);
  spread_over_nodes(range, kBytes);
  std::memset(range, 1, kBytes);
  ::munmap(range, kBytes);
}

}  // namespace
}  // namespace switchyard
