#include "metrics/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "core/error.h"
#include "metrics/svg_canvas.h"

namespace switchyard {
namespace {

// Okabe and Ito's palette, whose colours differ for all common kinds of
// colour blindness; the strongest first.
constexpr std::array<std::string_view, 7> kPalette = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#555555"};
constexpr std::string_view kFrameColour = "#777777";

// Maps data to pixels along one axis.
struct Axis {
  double low = 0;
  double high = 1;
  YScale scale = YScale::linear;

  // Sizes beyond 1e100 are left out too: nothing measured is that large, and
  // the arithmetic below cannot overflow.
  bool shows(double value) const {
    return std::abs(value) < 1e100 && (scale == YScale::linear || value > 1e-100);
  }
  double place(double value) const { return scale == YScale::linear ? value : std::log10(value); }
  double fraction(double value) const { return (place(value) - place(low)) / (place(high) - place(low)); }
};

// The axis over all shown values, with 5 % of free space at both ends where `pad`. False
// when there is no value.
bool fit_axis(const std::vector<double>& values, bool pad, Axis& axis) {
  bool any = false;
  for (const double value : values) {
    if (!axis.shows(value)) continue;
    axis.low = any ? std::min(axis.low, value) : value;
    axis.high = any ? std::max(axis.high, value) : value;
    any = true;
  }
  if (!any) return false;
  if (axis.low == axis.high) {
    const double half = axis.low == 0 ? 1 : 0.5 * std::abs(axis.low);
    axis.low -= half;
    axis.high += half;
  } else if (pad && axis.scale == YScale::linear) {
    const double margin = 0.05 * (axis.high - axis.low);
    axis.low -= margin;
    axis.high += margin;
  } else if (pad) {
    const double margin = std::pow(axis.high / axis.low, 0.05);
    axis.low /= margin;
    axis.high *= margin;
  }
  return true;
}

// Points of one line, with gaps where a value is not shown; builds the path of at most
// two points a pixel column.
class LinePath {
 public:
  void add(Point point) {
    const double column = std::floor(point.x);
    if (pending_ && column != column_) flush();
    if (!pending_) {
      first_ = second_ = point;
      column_ = column;
      pending_ = true;
      return;
    }
    // first_ and second_ are the column's extremes, in the order in which they came.
    const Point low = first_.y < second_.y ? first_ : second_;
    const Point high = first_.y < second_.y ? second_ : first_;
    if (point.y < low.y) {
      first_ = high;
      second_ = point;
    } else if (point.y > high.y) {
      first_ = low;
      second_ = point;
    }
  }

  void gap() {
    flush();
    pen_down_ = false;
  }

  std::string finish() {
    flush();
    return path_;
  }

 private:
  void flush() {
    if (!pending_) return;
    pending_ = false;
    append(first_);
    if (second_.x != first_.x || second_.y != first_.y) append(second_);
  }

  void append(Point point) {
    fmt::format_to(std::back_inserter(path_), "{}{} {}", pen_down_ ? 'L' : 'M', coordinate(point.x),
                   coordinate(point.y));
    pen_down_ = true;
  }

  std::string path_;
  Point first_;
  Point second_;
  double column_ = 0;
  bool pending_ = false;
  bool pen_down_ = false;
};

void draw_series(SvgCanvas& canvas, const Rectangle& frame, const Axis& x_axis, const Axis& y_axis,
                 const Series& series, std::string_view colour) {
  constexpr std::size_t kFewPoints = 40;  // such a line gets a dot at every point
  LinePath path;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    if (!x_axis.shows(series.x[i]) || !y_axis.shows(series.y[i])) {
      path.gap();
      continue;
    }
    const Point point{frame.x + frame.width * x_axis.fraction(series.x[i]),
                      frame.bottom() - frame.height * y_axis.fraction(series.y[i])};
    path.add(point);
    if (series.x.size() <= kFewPoints) canvas.circle(point, 3, colour);
  }
  canvas.stroke(path.finish(), colour, series.x.size() <= kFewPoints ? 2 : 1.5);
}

void draw_legend(SvgCanvas& canvas, const Rectangle& frame, const std::vector<Series>& series) {
  double x = frame.x;
  for (std::size_t i = 0; i < series.size(); ++i) {
    const std::string_view colour = kPalette[i % kPalette.size()];
    canvas.line({x, 48}, {x + 22, 48}, colour, 3);
    canvas.text({x + 28, 52}, series[i].name);
    x += 52 + estimated_width(series[i].name, 12);
  }
}

}  // namespace

std::string line_chart_svg(std::string_view title, std::string_view x_label, std::string_view y_label,
                           const std::vector<Series>& series, YScale scale) {
  std::vector<double> xs;
  std::vector<double> ys;
  Axis x_axis;
  Axis y_axis{.scale = scale};
  for (const Series& one : series) {
    CHECK(one.x.size() == one.y.size(), "series {}: {} x, {} y", one.name, one.x.size(), one.y.size());
    for (std::size_t i = 0; i < one.x.size(); ++i) {
      if (!x_axis.shows(one.x[i]) || !y_axis.shows(one.y[i])) continue;
      xs.push_back(one.x[i]);
      ys.push_back(one.y[i]);
    }
  }
  if (!fit_axis(xs, false, x_axis) || !fit_axis(ys, true, y_axis)) return empty_plot_svg(title);

  SvgCanvas canvas(860, 460, title);
  const Rectangle frame{76, 68, 756, 332};
  const bool linear = scale == YScale::linear;
  for (const double tick : linear_ticks(x_axis.low, x_axis.high, 8)) {
    canvas.x_tick(frame, frame.x + frame.width * x_axis.fraction(tick), number_label(tick), true);
  }
  for (const double tick :
       linear ? linear_ticks(y_axis.low, y_axis.high, 6) : logarithmic_ticks(y_axis.low, y_axis.high)) {
    canvas.y_tick(frame, frame.bottom() - frame.height * y_axis.fraction(tick), number_label(tick), true);
  }
  canvas.box(frame, "none", kFrameColour);
  canvas.text({frame.x + frame.width / 2, 446}, x_label, {.size = 13, .anchor = Anchor::middle});
  canvas.text({20, frame.y + frame.height / 2}, y_label,
              {.size = 13, .anchor = Anchor::middle, .rotate = -90});
  draw_legend(canvas, frame, series);
  for (std::size_t i = 0; i < series.size(); ++i) {
    draw_series(canvas, frame, x_axis, y_axis, series[i], kPalette[i % kPalette.size()]);
  }
  return canvas.finish();
}

std::string bar_chart_svg(std::string_view title, std::string_view unit,
                          const std::vector<std::pair<std::string, double>>& bars) {
  constexpr double kBarHeight = 22;
  constexpr double kBarPitch = 32;
  double sum = 0;
  double largest = 0;
  double label_width = 0;
  for (const auto& [name, value] : bars) {
    const double shown = std::isfinite(value) ? value : 0;
    sum += shown;
    largest = std::max(largest, shown);
    label_width = std::max(label_width, estimated_width(name, 13));
  }
  if (!(sum > 0)) return empty_plot_svg(title);

  const Rectangle frame{28 + label_width, 48, 520, kBarPitch * static_cast<double>(bars.size())};
  SvgCanvas canvas(frame.right() + 150, frame.bottom() + 56, title);
  for (const double tick : linear_ticks(0, largest, 6)) {
    canvas.x_tick(frame, frame.x + frame.width * tick / largest, number_label(tick), true);
  }
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const double value = std::isfinite(bars[i].second) ? bars[i].second : 0;
    const double top = frame.y + kBarPitch * static_cast<double>(i) + (kBarPitch - kBarHeight) / 2;
    const double length = frame.width * value / largest;
    canvas.box({frame.x, top, length, kBarHeight}, kPalette[0]);
    canvas.text({frame.x - 8, top + 16}, bars[i].first, {.size = 13, .anchor = Anchor::end});
    canvas.text({frame.x + length + 8, top + 16},
                fmt::format("{:.3g} {} ({:.1f} %)", value, unit, 100 * value / sum), {.colour = "#111111"});
  }
  canvas.line({frame.x, frame.y}, {frame.x, frame.bottom()}, kFrameColour);
  canvas.text({frame.x + frame.width / 2, frame.bottom() + 40}, unit, {.size = 13, .anchor = Anchor::middle});
  return canvas.finish();
}

}  // namespace switchyard
