#include "metrics/append_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"

namespace switchyard {
namespace {

// Another process that has the file locked, for as long as it lives.
class Holder {
 public:
  explicit Holder(const std::string& path) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    id_ = ::fork();
    if (id_ == 0) {
      const int file = ::open(path.c_str(), O_WRONLY | O_CREAT, 0666);
      const char done = ::flock(file, LOCK_EX) == 0 ? 1 : 0;
      if (::write(ready[1], &done, 1) == 1) ::pause();
      ::_exit(0);
    }
    char done = 0;
    EXPECT_EQ(::read(ready[0], &done, 1), 1);
    EXPECT_EQ(done, 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Holder() { end(); }
  void end() {
    if (id_ < 0) return;
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
    id_ = -1;
  }
  pid_t id() const { return id_; }

 private:
  pid_t id_ = -1;
};

TEST(AppendFileLock, OneProcessAtATime) {
  const std::string path = testing::TempDir() + "append_file_lock_" + std::to_string(::getpid());
  std::ofstream(path) << "of the other\n";
  {
    const Holder other(path);
    try {
      const AppendFile file("metrics_file", path);
      FAIL() << "two writers";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::usage);
      const std::string text = error.what();
      EXPECT_NE(text.find("[metrics_file] " + path + " is being written by "), std::string::npos) << text;
      const bool names = text.find("process " + std::to_string(other.id())) != std::string::npos;
      EXPECT_TRUE(names || text.find("another process") != std::string::npos) << text;
    }
    EXPECT_EQ(std::filesystem::file_size(path), 13u);
  }
  AppendFile file("metrics_file", path);
  file.clear();
  file.append("mine\n");
  file.close();
  const AppendFile again("metrics_file", path), null("a", "/dev/null"), also_null("b", "/dev/null");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace switchyard
