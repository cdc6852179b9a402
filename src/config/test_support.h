// Helpers for the tests in this folder.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/error.h"

namespace switchyard {

inline Config config_of(std::vector<std::string> arguments) {
  return Config::from_args(arguments);
}

// The message of the Error that a command line causes; empty without an error.
inline std::string problem_of(const std::vector<std::string>& arguments) {
  try {
    Config::from_args(arguments);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return {};
}

inline bool mentions(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) return false;
  }
  return true;
}

// True when one line of the config's notices contains all the parts.
inline bool notices_mention(const Config& config, const std::vector<std::string>& parts) {
  for (const std::string& line : config.notices()) {
    if (mentions(line, parts)) return true;
  }
  return false;
}

#define EXPECT_MENTIONS(text, ...) EXPECT_PRED2(mentions, (text), (std::vector<std::string>{__VA_ARGS__}))

}  // namespace switchyard
