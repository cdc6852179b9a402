#include "core/control_group.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace switchyard {
namespace {

namespace fs = std::filesystem;

class ControlGroup : public ::testing::Test {
 protected:
  ControlGroup() : root_(testing::TempDir() + "control_group_" + std::to_string(::getpid())) {}
  ~ControlGroup() override { fs::remove_all(root_); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(root_ + "/" + name).parent_path());
    std::ofstream(root_ + "/" + name) << text;
  }
  void group(const std::string& folder, const std::string& limit, const std::string& used,
             const std::string& inactive) const {
    const std::string at = "sys/fs/cgroup/" + folder;
    write(at + "/memory.max", limit + "\n");
    write(at + "/memory.current", used + "\n");
    write(at + "/memory.stat", "anon 5\ninactive_file " + inactive + "\n");
  }
  std::optional<std::int64_t> left() const { return memory_left_by_control_groups(root_); }

  std::string root_;
};

TEST_F(ControlGroup, TheTightestOfTheGroupsCounts) {
  EXPECT_EQ(left(), std::nullopt);
  write("proc/self/cgroup", "0::/job/step\n");
  group("job/step", "max", "100", "0");
  EXPECT_EQ(left(), std::nullopt);
  group("job", "1000", "700", "100");
  EXPECT_EQ(left(), 400);
  group("job/step", "500", "450", "0");
  EXPECT_EQ(left(), 50);
  group("job/step", "500", "900", "0");  // lowered later
  EXPECT_EQ(left(), 0);
}

TEST_F(ControlGroup, TheMountOfAContainerIsItsOwnGroup) {
  write("proc/self/cgroup", "0::/not/visible\n");
  group("", "2000", "500", "0");
  EXPECT_EQ(left(), 1500);
}

TEST_F(ControlGroup, TheFirstVersion) {
  write("proc/self/cgroup", "7:cpu,cpuacct:/\n4:memory:/job\n0::/\n");
  const std::string at = "sys/fs/cgroup/memory/job/";
  write(at + "memory.limit_in_bytes", "9223372036854771712");
  write(at + "memory.usage_in_bytes", "10");
  EXPECT_EQ(left(), std::nullopt);
  write(at + "memory.limit_in_bytes", "3000");
  write(at + "memory.stat", "inactive_file 1\ntotal_inactive_file 4\n");
  EXPECT_EQ(left(), 2994);
}

}  // namespace
}  // namespace switchyard
