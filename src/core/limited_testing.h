// Limits of this process, for tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace switchyard {

// Sets a limit of the process for as long as it lives.
class Limited {
 public:
  Limited(decltype(RLIMIT_AS) resource, rlim_t bytes) : resource_(resource) {
    ::getrlimit(resource_, &before_);
    rlimit now = before_;
    now.rlim_cur = bytes;
    EXPECT_EQ(::setrlimit(resource_, &now), 0);
  }
  ~Limited() { ::setrlimit(resource_, &before_); }
  Limited(const Limited&) = delete;
  Limited& operator=(const Limited&) = delete;

 private:
  const decltype(RLIMIT_AS) resource_;
  rlimit before_{};
};

}  // namespace switchyard
