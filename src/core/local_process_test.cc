#include "core/local_process.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace switchyard {
namespace {

TEST(LocalProcess, IsWhatTheLauncherSays) {
  const std::vector<std::string> variables{"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
  for (const std::string& variable : variables) ::unsetenv(variable.c_str());
  EXPECT_EQ(local_process(), 0);
  int expected = 7;
  for (auto variable = variables.rbegin(); variable != variables.rend(); ++variable) {
    ::setenv(variable->c_str(), std::to_string(--expected).c_str(), 1);
    EXPECT_EQ(local_process(), expected) << *variable;
  }
  for (const std::string& variable : variables) ::unsetenv(variable.c_str());
}

}  // namespace
}  // namespace switchyard
