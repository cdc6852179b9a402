#include "core/file_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>

namespace switchyard {
namespace {

// A run that goes on is told at once: one that ends soon must not be waited for, and then be written over.
TEST(FileLock, ALiveHolderIsToldAtOnceAndAKilledOneIsWaitedFor) {
  const std::string path = std::filesystem::temp_directory_path() / ("file_lock_" + std::to_string(::getpid()));
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const int own = ::open(path.c_str(), O_CREAT | O_RDWR, 0600);
    const char done = lock_file(own, path).empty() ? 'y' : 'n';
    if (::write(ready[1], &done, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char done = 0;
  ASSERT_EQ(::read(ready[0], &done, 1), 1);
  EXPECT_EQ(done, 'y');
  const int file = ::open(path.c_str(), O_RDWR);
  const auto begin = std::chrono::steady_clock::now();
  const std::string holder = lock_file(file, path);
  if (holder != "another process") {  // the system tells who has a lock
    EXPECT_EQ(holder, "process " + std::to_string(child));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  }
  ::kill(child, SIGKILL);
  EXPECT_EQ(lock_file(file, path), "");
  ::waitpid(child, nullptr, 0);
  ::close(file);
  ::close(ready[0]);
  ::close(ready[1]);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace switchyard
