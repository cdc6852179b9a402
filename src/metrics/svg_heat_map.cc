// Implements heat_map_svg of svg_plot.h.
//
// A run has millions of cells (layers × experts × steps), so cells are quantised to a few colours, and each
// colour of a panel is one path in which neighbours of the same row are merged.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "core/error.h"
#include "metrics/svg_canvas.h"
#include "metrics/svg_plot.h"

namespace switchyard {
namespace {

constexpr std::int64_t kMaxPanels = 16;
constexpr std::int64_t kMaxColumns = 180;
constexpr int kLevels = 33;  // eight to a doubling, from 1/4 to 4
constexpr double kLegendWidth = 264;

struct Colour {
  double red;
  double green;
  double blue;
};

// Blue to nearly white to orange: told apart by lightness at each side, and by hue by all readers.
std::string level_colour(int level) {
  constexpr std::array<Colour, 5> kStops = {
      {{8, 64, 129}, {103, 169, 207}, {247, 247, 247}, {253, 174, 97}, {166, 54, 3}}};
  const double position = 4.0 * level / (kLevels - 1);
  const auto stop = static_cast<std::size_t>(std::min(std::floor(position), 3.0));
  const double part = position - static_cast<double>(stop);
  const auto mix = [&](double Colour::*channel) {
    return static_cast<int>(
        std::lround(kStops[stop].*channel * (1 - part) + kStops[stop + 1].*channel * part));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(&Colour::red), mix(&Colour::green), mix(&Colour::blue));
}

// The colour of a load relative to the mean; -1 (left white) when it is not a number.
int level_of(double load) {
  if (std::isnan(load)) return -1;
  const double doublings = load > 0 ? std::clamp(std::log2(load), -2.0, 2.0) : -2.0;
  return static_cast<int>(std::lround((doublings + 2) / 4 * (kLevels - 1)));
}

// Levels of one row, its columns averaged down to `buckets`.
std::vector<int> row_levels(const double* values, std::int64_t columns, std::int64_t buckets) {
  std::vector<int> levels;
  for (std::int64_t bucket = 0; bucket < buckets; ++bucket) {
    const std::int64_t begin = bucket * columns / buckets;
    const std::int64_t end = (bucket + 1) * columns / buckets;
    double sum = 0;
    std::int64_t count = 0;
    for (std::int64_t column = begin; column < end; ++column) {
      if (!std::isfinite(values[column])) continue;
      sum += values[column];
      ++count;
    }
    levels.push_back(count == 0 ? -1 : level_of(sum / static_cast<double>(count)));
  }
  return levels;
}

void draw_cells(SvgCanvas& canvas, const Rectangle& frame, const HeatPanel& panel, std::int64_t columns) {
  const std::int64_t buckets = std::min(columns, kMaxColumns);
  const double cell_width = frame.width / static_cast<double>(buckets);
  const double cell_height = frame.height / static_cast<double>(panel.rows);
  std::array<std::string, kLevels> paths;
  for (std::int64_t row = 0; row < panel.rows; ++row) {
    const std::vector<int> levels = row_levels(panel.values.data() + row * columns, columns, buckets);
    const std::string top = coordinate(frame.y + cell_height * static_cast<double>(row));
    const std::string bottom = coordinate(frame.y + cell_height * static_cast<double>(row + 1));
    for (std::size_t begin = 0, end = 0; begin < levels.size(); begin = end) {
      while (end < levels.size() && levels[end] == levels[begin]) ++end;
      if (levels[begin] < 0) continue;
      fmt::format_to(std::back_inserter(paths[static_cast<std::size_t>(levels[begin])]), "M{} {}H{}V{}H{}z",
                     coordinate(frame.x + cell_width * static_cast<double>(begin)), top,
                     coordinate(frame.x + cell_width * static_cast<double>(end)), bottom,
                     coordinate(frame.x + cell_width * static_cast<double>(begin)));
    }
  }
  for (int level = 0; level < kLevels; ++level) {
    const std::string& path = paths[static_cast<std::size_t>(level)];
    if (!path.empty()) canvas.fill(path, level_colour(level));
  }
}

// Ticks stand at the middle of their row or column; columns need not be evenly spaced in steps.
void draw_ticks(SvgCanvas& canvas, const Rectangle& frame, std::int64_t rows,
                const std::vector<double>& column_x) {
  const double columns = static_cast<double>(column_x.size());
  const int count = frame.width > 600 ? 8 : 5;
  std::vector<double> steps = linear_ticks(column_x.front(), column_x.back(), count);
  if (steps.empty()) steps = {column_x.front()};
  for (const double step : steps) {
    const auto place = std::lower_bound(column_x.begin(), column_x.end(), step - 1e-9);
    const double column = std::min(static_cast<double>(place - column_x.begin()), columns - 1);
    canvas.x_tick(frame, frame.x + frame.width * (column + 0.5) / columns, number_label(step), false);
  }
  std::vector<double> experts = linear_ticks(0, static_cast<double>(rows - 1), 5);
  if (experts.empty()) experts = {0};
  for (const double expert : experts) {
    if (expert != std::floor(expert)) continue;
    canvas.y_tick(frame, frame.y + frame.height * (expert + 0.5) / static_cast<double>(rows),
                  number_label(expert), false);
  }
}

void draw_legend(SvgCanvas& canvas, double right) {
  const Rectangle bar{right - kLegendWidth, 42, kLegendWidth, 12};
  const double width = bar.width / kLevels;
  for (int level = 0; level < kLevels; ++level) {
    canvas.box({bar.x + width * level, bar.y, width + 0.3, bar.height}, level_colour(level));
  }
  canvas.text({bar.x - 12, bar.y + 10}, "load relative to the mean", {.anchor = Anchor::end});
  constexpr std::array<std::string_view, 5> kLabels = {"\u2264 \u00bc", "\u00bd", "1 (balanced)", "2",
                                                       "\u2265 4"};
  for (std::size_t i = 0; i < kLabels.size(); ++i) {
    canvas.text({bar.x + width / 2 + (bar.width - width) * static_cast<double>(i) / 4, bar.bottom() + 14},
                kLabels[i], {.size = 11, .anchor = Anchor::middle});
  }
}

// Indices of the panels to show, spread evenly and with both ends.
std::vector<std::size_t> chosen_panels(std::size_t count) {
  const std::size_t shown = std::min(count, static_cast<std::size_t>(kMaxPanels));
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < shown; ++i)
    chosen.push_back(shown == count ? i : i * (count - 1) / (shown - 1));
  return chosen;
}

void draw_panel(SvgCanvas& canvas, const Rectangle& frame, const HeatPanel& panel, std::string_view x_label,
                std::string_view y_label, const std::vector<double>& column_x) {
  canvas.text({frame.x, frame.y - 7}, panel.name, {.size = 13, .bold = true});
  if (panel.rows > 0) {
    draw_cells(canvas, frame, panel, static_cast<std::int64_t>(column_x.size()));
    draw_ticks(canvas, frame, panel.rows, column_x);
  }
  canvas.box(frame, "none", "#777777");
  canvas.text({frame.x + frame.width / 2, frame.bottom() + 36}, x_label, {.anchor = Anchor::middle});
  canvas.text({frame.x - 42, frame.y + frame.height / 2}, y_label, {.anchor = Anchor::middle, .rotate = -90});
}

// The height of all panels, from the one with most rows.
double panel_height(const std::vector<HeatPanel>& panels, std::size_t columns) {
  std::int64_t most_rows = 0;
  for (const HeatPanel& panel : panels) {
    CHECK(panel.values.size() == static_cast<std::size_t>(panel.rows) * columns,
          "panel {}: {} values, {} rows, {} columns", panel.name, panel.values.size(), panel.rows, columns);
    most_rows = std::max(most_rows, panel.rows);
  }
  return std::clamp(12.0 * static_cast<double>(most_rows), 72.0, 256.0);
}

}  // namespace

std::string heat_map_svg(std::string_view title, std::string_view x_label, std::string_view y_label,
                         const std::vector<double>& column_x, const std::vector<HeatPanel>& panels) {
  const double height = panel_height(panels, column_x.size());
  if (column_x.empty() || panels.empty()) return empty_plot_svg(title);
  const std::vector<std::size_t> chosen = chosen_panels(panels.size());
  const std::string note =
      chosen.size() == panels.size() ? "" : fmt::format(" ({} of {} shown)", chosen.size(), panels.size());

  constexpr double kTop = 88;
  const std::size_t across = chosen.size() > 3 ? 2 : 1;
  const std::size_t down = (chosen.size() + across - 1) / across;
  const double panel_width = across == 1 ? 796 : 400;
  const double pitch_x = panel_width + 76;
  const double pitch_y = height + 76;
  const double width = pitch_x * static_cast<double>(across) + 20;
  SvgCanvas canvas(width, kTop + pitch_y * static_cast<double>(down), std::string(title) + note);
  draw_legend(canvas, width - 28);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::size_t row = i / across;
    const std::size_t column = i % across;
    const Rectangle frame{64 + pitch_x * static_cast<double>(column),
                          kTop + 14 + pitch_y * static_cast<double>(row), panel_width, height};
    draw_panel(canvas, frame, panels[chosen[i]], x_label, y_label, column_x);
  }
  return canvas.finish();
}

}  // namespace switchyard
