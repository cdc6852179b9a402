// The progress bar of a long command: shown on standard error when that is a terminal, else nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

namespace switchyard {

// One line such as "[=========>          ]  45%  90/200  ETA 1:23  loss 3.21", redrawn at most ten times a
// second. Lines for people go to standard output through line(), which removes the bar and then redraws it,
// so both can share a terminal. Use from one thread only.
class Progress {
 public:
  // `total` steps, >= 0. The streams are for tests; they must outlive the bar.
  explicit Progress(std::int64_t total, std::FILE* output = stdout, std::FILE* terminal = stderr);
  ~Progress();  // finishes, so that an error message starts on a clean line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Prints `text` and a line end on standard output at once. A failed write only sets the stream's error
  // flag: a full disk under a log must not end a run whose results go elsewhere.
  void line(std::string_view text);

  // Shows that `step` steps are done; `text` follows the ETA. Text wider than the terminal is cut.
  void update(std::int64_t step, std::string_view text);

  // Removes the bar. Later calls of update() do nothing.
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
      -1;  // the ETA's clock starts at the first update, so it leaves out the start-up
  std::chrono::steady_clock::time_point first_time_;
  std::chrono::steady_clock::time_point last_draw_;
};

// Makes a progress bar for ModelOnRanks::load().
std::function<void(std::int64_t read, std::int64_t all)> load_bar();

// The bar's text: at most `width` columns of ASCII, and `text`. `seconds_left` < 0: not yet known.
std::string progress_bar(std::int64_t step, std::int64_t total, double seconds_left, std::string_view text,
                         std::int64_t width);

// Formats a duration as "0:07", "12:34", "5:00:00" or "3d 04h".
std::string format_duration(double seconds);

}  // namespace switchyard
