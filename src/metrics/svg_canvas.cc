#include "metrics/svg_canvas.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace switchyard {
namespace {

constexpr std::string_view kGridColour = "#e4e4e4";
constexpr std::string_view kAxisColour = "#777777";

std::string_view anchor_name(Anchor anchor) {
  if (anchor == Anchor::start) return "start";
  return anchor == Anchor::middle ? "middle" : "end";
}

}  // namespace

SvgCanvas::SvgCanvas(double width, double height, std::string_view title)
    : width_(width), height_(height), title_(title) {
  text({16, 26}, title, {.size = 16, .bold = true, .colour = "#111111"});
}

void SvgCanvas::text(Point at, std::string_view text, const TextStyle& style) {
  const std::string turn = style.rotate == 0 ? ""
                                             : fmt::format(" transform=\"rotate({} {} {})\"", style.rotate,
                                                           coordinate(at.x), coordinate(at.y));
  fmt::format_to(std::back_inserter(body_),
                 "<text x=\"{}\" y=\"{}\" font-size=\"{}\" text-anchor=\"{}\"{} fill=\"{}\"{}>{}</text>\n",
                 coordinate(at.x), coordinate(at.y), style.size, anchor_name(style.anchor),
                 style.bold ? " font-weight=\"600\"" : "", style.colour, turn, escape_xml(text));
}

void SvgCanvas::line(Point from, Point to, std::string_view colour, double width) {
  fmt::format_to(std::back_inserter(body_),
                 "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{}\" stroke-width=\"{}\"/>\n",
                 coordinate(from.x), coordinate(from.y), coordinate(to.x), coordinate(to.y), colour, width);
}

void SvgCanvas::circle(Point centre, double radius, std::string_view colour) {
  fmt::format_to(std::back_inserter(body_), "<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"/>\n",
                 coordinate(centre.x), coordinate(centre.y), radius, colour);
}

void SvgCanvas::box(const Rectangle& box, std::string_view fill, std::string_view stroke) {
  fmt::format_to(std::back_inserter(body_),
                 "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"{}\" "
                 "shape-rendering=\"crispEdges\"/>\n",
                 coordinate(box.x), coordinate(box.y), coordinate(box.width), coordinate(box.height), fill,
                 stroke);
}

void SvgCanvas::stroke(std::string_view commands, std::string_view colour, double width) {
  fmt::format_to(
      std::back_inserter(body_),
      "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"/>\n",
      commands, colour, width);
}

void SvgCanvas::fill(std::string_view commands, std::string_view colour) {
  fmt::format_to(std::back_inserter(body_), "<path d=\"{}\" fill=\"{}\" shape-rendering=\"crispEdges\"/>\n",
                 commands, colour);
}

void SvgCanvas::x_tick(const Rectangle& frame, double x, std::string_view label, bool grid) {
  if (grid) line({x, frame.y}, {x, frame.bottom()}, kGridColour);
  line({x, frame.bottom()}, {x, frame.bottom() + 4}, kAxisColour);
  text({x, frame.bottom() + 17}, label, {.anchor = Anchor::middle});
}

void SvgCanvas::y_tick(const Rectangle& frame, double y, std::string_view label, bool grid) {
  if (grid) line({frame.x, y}, {frame.right(), y}, kGridColour);
  line({frame.x - 4, y}, {frame.x, y}, kAxisColour);
  text({frame.x - 8, y + 4}, label, {.anchor = Anchor::end});
}

std::string SvgCanvas::finish() const {
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"system-ui, 'DejaVu Sans', Arial, sans-serif\">\n"
      "<title>{2}</title>\n<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n{3}</svg>\n",
      coordinate(width_), coordinate(height_), escape_xml(title_), body_);
}

std::string empty_plot_svg(std::string_view title) {
  SvgCanvas canvas(480, 120, title);
  canvas.text({16, 70}, "no data to plot", {.size = 13, .colour = "#777777"});
  return canvas.finish();
}

std::string escape_xml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20u) escaped += c;
    }
  }
  return escaped;
}

std::string coordinate(double value) {
  const double rounded = std::round(value * 10) / 10;
  return fmt::format("{:.10g}", rounded == 0 ? 0.0 : rounded);  // no "-0"
}

std::string number_label(double value) {
  const double size = std::abs(value);
  if (size >= 1e15) return fmt::format("{:.3g}", value);
  if (size >= 1e12) return fmt::format("{:.6g}T", value / 1e12);
  if (size >= 1e9) return fmt::format("{:.6g}G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.6g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.6g}k", value / 1e3);
  return fmt::format("{:.6g}", value);
}

std::vector<double> linear_ticks(double low, double high, int count) {
  if (!(low < high) || !std::isfinite(high - low)) return {};
  const double raw = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double lead = raw / power;
  const double step = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
  std::vector<double> ticks;
  // The tolerance keeps an end that is a round number despite rounding errors.
  const double last = std::floor(high / step + 1e-9);
  for (double k = std::ceil(low / step - 1e-9); k <= last; ++k) {
    ticks.push_back(k == 0 ? 0.0 : k * step);
    if (ticks.size() > 100) break;  // k + 1 == k: the range is finer than a double tells
  }
  return ticks;
}

std::vector<double> logarithmic_ticks(double low, double high) {
  if (high / low < 10) return linear_ticks(low, high, 6);
  const double decades = std::log10(high / low);
  const double stride = std::ceil(decades / 8);
  std::vector<double> ticks;
  for (double exponent = std::floor(std::log10(low)); exponent <= std::log10(high); exponent += stride) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor > 1 && decades > 3) continue;
      const double tick = factor * std::pow(10.0, exponent);
      if (tick >= low && tick <= high) ticks.push_back(tick);
    }
  }
  return ticks;
}

double estimated_width(std::string_view text, double size) {
  return 0.58 * size * static_cast<double>(text.size());
}

}  // namespace switchyard
