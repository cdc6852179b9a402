#include "cli/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

namespace switchyard {
namespace {

bool can_draw(std::FILE* stream) {
  const char* kind = std::getenv("TERM");
  return ::isatty(::fileno(stream)) == 1 && !(kind != nullptr && std::string_view(kind) == "dumb");
}

std::int64_t terminal_width(std::FILE* stream) {
  winsize size{};
  const bool known = ::ioctl(::fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

// Cuts UTF-8 text to its first `columns` characters (each counts as one column).
std::string_view cut(std::string_view text, std::int64_t columns) {
  std::size_t bytes = 0;
  std::int64_t characters = 0;
  for (; bytes < text.size(); ++bytes) {
    const bool starts_character = (static_cast<unsigned char>(text[bytes]) & 0xC0u) != 0x80u;
    if (starts_character && ++characters > columns) break;
  }
  return text.substr(0, bytes);
}

}  // namespace

std::string format_duration(double seconds) {
  const auto total = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  const std::int64_t hours = total / 3600;
  if (hours >= 24) return fmt::format("{}d {:02}h", hours / 24, hours % 24);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, total / 60 % 60, total % 60);
  return fmt::format("{}:{:02}", total / 60, total % 60);
}

std::string progress_bar(std::int64_t step, std::int64_t total, double seconds_left, std::string_view text,
                         std::int64_t width) {
  constexpr std::int64_t kCells = 24;
  const double done =
      total > 0 ? std::clamp(static_cast<double>(step) / static_cast<double>(total), 0.0, 1.0) : 1;
  const auto filled = static_cast<std::int64_t>(done * kCells);
  std::string bar(static_cast<std::size_t>(filled), '=');
  if (filled < kCells) bar += '>';
  bar.resize(kCells, ' ');
  const std::string eta = seconds_left < 0 ? "-:--" : format_duration(seconds_left);
  const std::string all =
      fmt::format("[{}] {:3.0f}%  {}/{}  ETA {}  {}", bar, std::floor(done * 100), step, total, eta, text);
  return std::string(cut(all, width));
}

Progress::Progress(std::int64_t total, std::FILE* output, std::FILE* terminal)
    : total_(total), output_(output), terminal_(terminal), enabled_(can_draw(terminal)) {}

Progress::~Progress() {
  finish();
}

void Progress::line(std::string_view text) {
  const bool redraw = drawn_;
  clear();
  std::fwrite(text.data(), 1, text.size(), output_);
  std::fputc('\n', output_);
  std::fflush(output_);
  if (redraw) draw();
}

void Progress::update(std::int64_t step, std::string_view text) {
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  if (first_step_ < 0) {
    first_step_ = step;
    first_time_ = now;
  }
  step_ = step;
  text_ = text;
  if (drawn_ && now - last_draw_ < std::chrono::milliseconds(100)) return;
  last_draw_ = now;
  draw();
}

void Progress::finish() {
  clear();
  enabled_ = false;
}

void Progress::clear() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", terminal_);
  std::fflush(terminal_);
  drawn_ = false;
}

void Progress::draw() {
  const std::int64_t timed_steps = step_ - first_step_;
  const double elapsed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - first_time_).count();
  const double per_step = timed_steps > 0 ? elapsed / static_cast<double>(timed_steps) : -1;
  const double left =
      per_step < 0 ? -1 : per_step * static_cast<double>(std::max<std::int64_t>(total_ - step_, 0));
  // One column stays free: a terminal that is filled to the edge may wrap.
  const std::string bar = progress_bar(step_, total_, left, text_, terminal_width(terminal_) - 1);
  fmt::print(terminal_, "\r{}\x1b[K", bar);
  std::fflush(terminal_);
  drawn_ = true;
}

std::function<void(std::int64_t read, std::int64_t all)> load_bar() {
  return [bar = std::shared_ptr<Progress>()](std::int64_t read, std::int64_t all) mutable {
    constexpr std::int64_t kUnit = 1'000'000;
    if (bar == nullptr) bar = std::make_shared<Progress>(all / kUnit);
    bar->update(read / kUnit, "MB of weights");
  };
}

}  // namespace switchyard
