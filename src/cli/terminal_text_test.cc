#include "cli/terminal_text.h"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

TEST(TerminalText, KeepsTextAndHidesWhatATerminalWouldObey) {
  EXPECT_EQ(terminal_text("zwölf\tBoxer\n語"), "zwölf\tBoxer\n語");
  EXPECT_EQ(terminal_text("a\x1b[2Jb"), "a\uFFFD[2Jb");
  EXPECT_EQ(terminal_text("a\rb\x7f"), "a\uFFFDb\uFFFD");
  EXPECT_EQ(terminal_text(std::string("a\0b", 3)), "a\uFFFDb");
  EXPECT_EQ(terminal_text("\xff\xe8\xaa|"), "\uFFFD\uFFFD|");
  EXPECT_EQ(terminal_text("\xc2\x9b"
                          "31m"),
            "\uFFFD31m");  // a control sequence in one character
  EXPECT_EQ(terminal_text(""), "");
}

}  // namespace
}  // namespace switchyard
