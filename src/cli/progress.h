// The progress bar of a long command: on standard error when that is a terminal, nothing at all otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

namespace switchyard {

// One line such as "[=========>          ]  45%  90/200  ETA 1:23  loss 3.21", redrawn at most ten times a
// second. Lines for people go to standard output through line(), which takes the bar away first and puts it
// back after, so both can share a terminal. One thread only.
class Progress {
 public:
  // `total` steps, >= 0. The streams are for tests; they must outlive the bar.
  explicit Progress(std::int64_t total, std::FILE* output = stdout, std::FILE* terminal = stderr);
  ~Progress();  // as finish(), so that an error message starts on a clean line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Prints `text` and a line end on standard output at once. A failed write is left to the stream's error
  // flag: a full disk under a log must not end a run whose results go elsewhere.
  void line(std::string_view text);

  // `step` steps are done; `text` follows the ETA. Text wider than the terminal is cut.
  void update(std::int64_t step, std::string_view text);

  // Takes the bar away. Later calls of update() do nothing.
  void finish();

 private:
  void clear();
  void draw();

  std::int64_t total_;
  std::FILE* output_;
  std::FILE* terminal_;
  bool enabled_;
  bool drawn_ = false;
  std::int64_t step_ = 0;
  std::string text_;
  std::int64_t first_step_ =
      -1;  // the first update is where the ETA's clock starts: it leaves out the start-up
  std::chrono::steady_clock::time_point first_time_;
  std::chrono::steady_clock::time_point last_draw_;
};

// A bar for ModelOnRanks::load().
std::function<void(std::int64_t read, std::int64_t all)> load_bar();

// The bar's text, at most `width` columns of ASCII and `text`. `seconds_left` < 0: not yet known.
std::string progress_bar(std::int64_t step, std::int64_t total, double seconds_left, std::string_view text,
                         std::int64_t width);

// "0:07", "12:34", "5:00:00", "3d 04h".
std::string format_duration(double seconds);

}  // namespace switchyard
