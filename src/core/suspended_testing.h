// Suspends this process, for tests.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

namespace switchyard {

// Another process stops this one, all its threads, for so long; returns when it goes on.
inline void be_suspended(long milliseconds) {
  const auto sleep = [](long time) {
    const timespec for_time{time / 1000, time % 1000 * 1000000};
    ::nanosleep(&for_time, nullptr);
  };
  const pid_t self = ::getpid(), other = ::fork();
  ASSERT_GE(other, 0);
  if (other == 0) {
    sleep(100);  // until this one waits
    ::kill(self, SIGSTOP);
    sleep(milliseconds);
    ::kill(self, SIGCONT);
    ::_exit(0);
  }
  int status = 0;
  while (::waitpid(other, &status, 0) < 0) {
  }
}

}  // namespace switchyard
