// The drawing primitives and axis arithmetic that the plots of svg_plot.h share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

struct Point {
  double x = 0;
  double y = 0;
};

struct Rectangle {
  double x = 0;  // left
  double y = 0;  // top
  double width = 0;
  double height = 0;
  double right() const { return x + width; }
  double bottom() const { return y + height; }
};

enum class Anchor { start, middle, end };

struct TextStyle {
  double size = 12;  // pixels
  Anchor anchor = Anchor::start;
  bool bold = false;
  double rotate = 0;  // degrees, clockwise about the point
  std::string_view colour = "#333333";
};

// Collects SVG elements; all coordinates are pixels from the top left.
class SvgCanvas {
 public:
  // A white page with `title` at its top left and in the document's metadata.
  SvgCanvas(double width, double height, std::string_view title);

  void text(Point at, std::string_view text, const TextStyle& style = {});
  void line(Point from, Point to, std::string_view colour, double width = 1);
  void circle(Point centre, double radius, std::string_view colour);
  // A filled rectangle with sharp edges; `fill` "none" with a `stroke` draws its outline.
  void box(const Rectangle& box, std::string_view fill, std::string_view stroke = "none");
  // A stroked path; `commands` are in SVG's path language.
  void stroke(std::string_view commands, std::string_view colour, double width);
  // A filled path with sharp edges.
  void fill(std::string_view commands, std::string_view colour);

  // A tick of an axis along the bottom or the left of `frame`: a mark, its label, and, if `grid`, a line
  // across the frame.
  void x_tick(const Rectangle& frame, double x, std::string_view label, bool grid);
  void y_tick(const Rectangle& frame, double y, std::string_view label, bool grid);

  // The whole document.
  std::string finish() const;

 private:
  double width_;
  double height_;
  std::string title_;
  std::string body_;
};

// A small document that says that there is no data to plot.
std::string empty_plot_svg(std::string_view title);

// Escapes markup characters and drops control characters.
std::string escape_xml(std::string_view text);

// A coordinate, to a tenth of a pixel.
std::string coordinate(double value);

// Formats a number briefly: 0.5, 1200, 25k, 3M, 1e-05.
std::string number_label(double value);

// About `count` round values (1, 2 or 5 times a power of ten apart) within [low, high].
// Empty unless low < high.
std::vector<double> linear_ticks(double low, double high, int count);

// Ticks for a logarithmic axis, 0 < low < high: powers of ten, and 2 and 5 times these if they are few.
std::vector<double> logarithmic_ticks(double low, double high);

// The approximate width of `text` at `size` pixels: the renderer chooses the font, so this is an estimate.
double estimated_width(std::string_view text, double size);

}  // namespace switchyard
