#include "cli/help_page.h"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

constexpr const char* kPage =
    "switchyard go FOLDER [key=value ...]\n"
    "\n"
    "Goes on from a\n"
    "text of yours.\n"
    "\n"
    "  prompt=TEXT   the text that\n"
    "                goes on\n"
    "  seed=7        é draws\n"
    "\n"
    "Examples:\n"
    "  switchyard go a/very/long/folder that=stays in=one line=of text=for a=shell\n";

TEST(HelpPageTest, FillsLinesAndKeepsExamples) {
  EXPECT_EQ(wrapped_help(kPage, 100),
            "switchyard go FOLDER [key=value ...]\n\nGoes on from a text of yours.\n\n"
            "  prompt=TEXT   the text that goes on\n  seed=7        é draws\n\nExamples:\n"
            "  switchyard go a/very/long/folder that=stays in=one line=of text=for a=shell\n");
  EXPECT_EQ(
      wrapped_help(kPage, 25),
      "switchyard go FOLDER\n    [key=value ...]\n\nGoes on from a text of\nyours.\n\n"
      "  prompt=TEXT   the text\n                that goes\n                on\n  seed=7        é draws\n\n"
      "Examples:\n"
      "  switchyard go a/very/long/folder that=stays in=one line=of text=for a=shell\n");
}

}  // namespace
}  // namespace switchyard
