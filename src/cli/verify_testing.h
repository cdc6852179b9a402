// Test support: runs stored cases on a device.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/verify_command.h"
#include "core/error.h"

namespace switchyard {

// Expects that `switchyard verify STORED KEYS...` passes; shows its output when it does not.
inline void expect_verified(const std::filesystem::path& stored, const std::vector<std::string>& keys) {
  std::vector<std::string> args{stored};
  args.insert(args.end(), keys.begin(), keys.end());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  int status = -1;
  std::string failure;
  try {
    status = verify_command(args);
  } catch (const Error& error) {
    failure = error.what();
  }
  const std::string out = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, 0) << stored << " " << testing::PrintToString(keys) << "\n" << failure << "\n" << out;
}

}  // namespace switchyard
