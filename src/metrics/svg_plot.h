// Plots as self-contained SVG text: white background, no scripts, no external fonts or files, colours that
// colour-blind readers can distinguish. Text is escaped; values that are not finite (or
// beyond 1e100) are left out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard {

// One line of a chart; x and y have the same length and x does not decrease.
struct Series {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;
};

enum class YScale { linear, logarithmic };

// Lines with axes, ticks and a legend. If there are more points than pixels, each pixel column shows its
// lowest and highest point, so that spikes stay visible. A logarithmic scale leaves out values <= 0. Without
// data the plot says so.
std::string line_chart_svg(std::string_view title, std::string_view x_label, std::string_view y_label,
                           const std::vector<Series>& series, YScale scale = YScale::linear);

// One panel of a heat map: values[row * columns + column], row 0 at the top; every
// panel has the same columns.
struct HeatPanel {
  std::string name;
  std::int64_t rows = 0;
  std::vector<double> values;
};

// Panels of rows (experts) over columns (training steps, whose numbers are `column_x`). A value is a load
// relative to the mean: 1 is balanced and nearly white, less is blue, more is orange, on a log2 scale from
// 1/4 to 4 (values beyond are clamped). If there are more columns than pixels, they are averaged; of more
// than 16 panels, 16 spread evenly from first to last are shown and the title says so.
std::string heat_map_svg(std::string_view title, std::string_view x_label, std::string_view y_label,
                         const std::vector<double>& column_x, const std::vector<HeatPanel>& panels);

// Horizontal bars in the order given, each with its value, `unit` and share of the sum. Values are >= 0.
std::string bar_chart_svg(std::string_view title, std::string_view unit,
                          const std::vector<std::pair<std::string, double>>& bars);

}  // namespace switchyard
