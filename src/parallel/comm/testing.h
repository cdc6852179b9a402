// Helpers shared by tests of collectives.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "parallel/comm/processes.h"

namespace switchyard {

// The processes of this test program: one, or the processes of the mpirun that tests/mpi starts.
class TestJob : public testing::Environment {
 public:
  void SetUp() override { processes_ = join_processes(); }
  void TearDown() override { processes_.reset(); }
  Processes& processes() const { return *processes_; }

 private:
  std::unique_ptr<Processes> processes_;
};
inline TestJob& test_job() {
  static auto* const job = static_cast<TestJob*>(testing::AddGlobalTestEnvironment(new TestJob));
  return *job;
}

}  // namespace switchyard
