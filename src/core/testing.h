// Helpers that every test program uses.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/error.h"

namespace switchyard {

// Expects that a CHECK fails with a message that contains `words`.
template <typename Function>
void expect_broken_check(const Function& function, const std::string& words) {
  try {
    function();
    ADD_FAILURE() << "no CHECK broke: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::internal) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

// Ends the program with the message of the function's error, for a death test: what std::terminate() prints
// depends on the compiler.
template <typename Function>
void end_with_its_error(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
}

// The root of the source tree, which holds tests/golden and configs.
extern const char* const kSourceFolder;

}  // namespace switchyard
