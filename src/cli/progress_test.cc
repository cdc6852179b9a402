#include "cli/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

namespace switchyard {
namespace {

TEST(FormatDuration, FromSecondsToDays) {
  EXPECT_EQ(format_duration(-1), "0:00");
  EXPECT_EQ(format_duration(7), "0:07");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(754), "12:34");
  EXPECT_EQ(format_duration(18000), "5:00:00");
  EXPECT_EQ(format_duration(3 * 86400 + 4 * 3600), "3d 04h");
}

TEST(ProgressBar, ShowsPartEtaAndText) {
  EXPECT_EQ(progress_bar(0, 200, -1, "", 200), "[>                       ]   0%  0/200  ETA -:--  ");
  EXPECT_EQ(progress_bar(100, 200, 83, "loss 3.2", 200),
            "[============>           ]  50%  100/200  ETA 1:23  loss 3.2");
  EXPECT_EQ(progress_bar(200, 200, 0, "", 30), "[========================] 100");
  EXPECT_EQ(progress_bar(0, 0, 0, "", 200).substr(0, 31), "[========================] 100%");
  const std::string cut = progress_bar(1, 2, 0, "äöü", 50);
  EXPECT_EQ(cut.substr(cut.size() - 4), "äö");  // whole characters
}

std::string content(std::FILE* file) {
  std::string text;
  std::rewind(file);
  std::array<char, 4096> buffer{};
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), file))
    text.append(buffer.data(), count);
  return text;
}

TEST(Progress, SilentWithoutTerminal) {
  std::FILE* output = std::tmpfile();
  std::FILE* terminal = std::tmpfile();
  {
    Progress progress(10, output, terminal);
    progress.update(1, "loss 3");
    progress.line("step 1");
    progress.update(10, "loss 2");
    progress.finish();
  }
  EXPECT_EQ(content(output), "step 1\n");
  EXPECT_EQ(content(terminal), "");
  std::fclose(output);
  std::fclose(terminal);
}

// Both streams share a pseudo-terminal, as in a user's session.
TEST(Progress, TakesTheBarAwayForALine) {
  // A bare container may have no /dev/pts. What a stream without a terminal gets is checked above.
  const int controller = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (controller < 0) GTEST_SKIP() << "no pseudo-terminal here: /dev/ptmx: " << std::strerror(errno);
  ASSERT_EQ(::unlockpt(controller), 0);
  const std::string name = ::ptsname(controller);
  std::FILE* terminal = std::fopen(name.c_str(), "r+");
  if (terminal == nullptr) {
    const std::string reason = std::strerror(errno);
    ::close(controller);
    GTEST_SKIP() << "no pseudo-terminal here: " << name << ": " << reason;
  }
  ::setenv("TERM", "xterm", 1);
  {
    Progress progress(10, terminal, terminal);
    progress.line("start");
    progress.update(5, "a");
    progress.update(6, "not drawn: too soon after the last");
    progress.line("step 5");
  }
  std::fclose(terminal);
  // What was written arrives in pieces; after the last one read fails, as nobody has the terminal open.
  std::array<char, 4096> buffer{};
  std::string seen;
  for (ssize_t count; (count = ::read(controller, buffer.data(), buffer.size())) > 0;) {
    seen.append(buffer.data(), static_cast<std::size_t>(count));
  }
  ::close(controller);
  const std::string clear = "\r\x1b[K";
  EXPECT_EQ(seen.rfind("start\r\n\r[============>", 0), 0u) << seen;
  EXPECT_NE(seen.find(clear + "step 5\r\n\r["), std::string::npos) << seen;
  EXPECT_EQ(seen.substr(seen.size() - clear.size()), clear) << seen;
}

}  // namespace
}  // namespace switchyard
