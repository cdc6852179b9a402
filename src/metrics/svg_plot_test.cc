#include "metrics/svg_plot.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "metrics/svg_canvas.h"

namespace switchyard {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Checks that tags nest and close, attributes are quoted, and no stray markup character is in the text.
testing::AssertionResult well_formed(const std::string& svg) {
  std::vector<std::string> open;
  std::size_t at = 0;
  while ((at = svg.find_first_of("<>", at)) != std::string::npos) {
    const std::size_t end = svg.find('>', at);
    if (svg[at] == '>' || end == std::string::npos)
      return testing::AssertionFailure() << "stray bracket at " << at;
    const std::string tag = svg.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.find('<') != std::string::npos) return testing::AssertionFailure() << "bracket in tag " << tag;
    if (tag.front() == '?') continue;
    std::size_t quotes = 0;
    for (const char c : tag) quotes += c == '"' ? 1u : 0u;
    if (quotes % 2 != 0) return testing::AssertionFailure() << "odd quotes in " << tag;
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1))
        return testing::AssertionFailure() << "unexpected </" << tag;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  if (!open.empty()) return testing::AssertionFailure() << "not closed: " << open.back();
  if (svg.find("nan") != std::string::npos || svg.find("inf") != std::string::npos) {
    return testing::AssertionFailure() << "a coordinate is not finite";
  }
  return testing::AssertionSuccess();
}

TEST(WellFormed, RejectsBrokenDocuments) {
  EXPECT_TRUE(well_formed("<a><b x=\"1\"/>text</a>"));
  EXPECT_FALSE(well_formed("<a><b></a></b>"));
  EXPECT_FALSE(well_formed("<a>"));
  EXPECT_FALSE(well_formed("<a x=\"1/></a>"));
  EXPECT_FALSE(well_formed("<a> 2 > 1 </a>"));
  EXPECT_FALSE(well_formed("<a x=\"nan\"/>"));
}

TEST(Ticks, AreRoundAndInside) {
  EXPECT_EQ(linear_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(linear_ticks(-1, 1, 4), (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  EXPECT_TRUE(linear_ticks(3, 3, 5).empty());
  EXPECT_TRUE(linear_ticks(kNan, 3, 5).empty());
  EXPECT_LT(linear_ticks(1e17, 1e17 + 64, 5).size(), 200u);
  EXPECT_EQ(logarithmic_ticks(0.5, 60), (std::vector<double>{0.5, 1, 2, 5, 10, 20, 50}));
  EXPECT_EQ(logarithmic_ticks(1, 1e4), (std::vector<double>{1, 10, 100, 1000, 10000}));
}

TEST(Labels, AreShort) {
  EXPECT_EQ(number_label(0.5), "0.5");
  EXPECT_EQ(number_label(0), "0");
  EXPECT_EQ(number_label(1200), "1200");
  EXPECT_EQ(number_label(25000), "25k");
  EXPECT_EQ(number_label(3e6), "3M");
  EXPECT_EQ(coordinate(-0.01), "0");
}

TEST(LineChart, KeepsSpikesOfLongSeries) {
  Series series{"loss <train> & more", {}, {}};
  for (int i = 0; i < 100000; ++i) {
    series.x.push_back(i);
    series.y.push_back(i == 50000 ? 100.0 : 1.0);
  }
  const std::string svg = line_chart_svg("title", "step", "loss", {series});
  EXPECT_TRUE(well_formed(svg));
  EXPECT_LT(svg.size(), 60000u);
  EXPECT_NE(svg.find("loss &lt;train&gt; &amp; more"), std::string::npos);
  EXPECT_NE(svg.find(" 83.1"), std::string::npos);  // 5 % below the top of the frame: the spike is drawn
}

TEST(LineChart, AwkwardData) {
  for (const YScale scale : {YScale::linear, YScale::logarithmic}) {
    EXPECT_TRUE(well_formed(line_chart_svg("none", "x", "y", {}, scale)));
    EXPECT_TRUE(well_formed(line_chart_svg("empty", "x", "y", {{"a", {}, {}}}, scale)));
    EXPECT_TRUE(well_formed(line_chart_svg("one", "x", "y", {{"a", {3}, {2}}}, scale)));
    EXPECT_TRUE(
        well_formed(line_chart_svg("not a number", "x", "y", {{"a", {0, 1, 2}, {kNan, kNan, kNan}}}, scale)));
    EXPECT_TRUE(well_formed(line_chart_svg("gap", "x", "y", {{"a", {0, 1, 2}, {3, kNan, 1}}}, scale)));
    EXPECT_TRUE(well_formed(line_chart_svg("huge", "x", "y", {{"a", {0, 1}, {1e-300, 1e300}}}, scale)));
    EXPECT_TRUE(well_formed(line_chart_svg("below", "x", "y", {{"a", {0, 1, 2}, {-1, 0, 1}}}, scale)));
  }
}

TEST(HeatMap, SmallAndHugeRuns) {
  EXPECT_TRUE(well_formed(heat_map_svg("none", "step", "expert", {}, {})));
  EXPECT_TRUE(well_formed(heat_map_svg("one", "step", "expert", {0}, {{"layer 0", 1, {1}}})));
  EXPECT_TRUE(well_formed(heat_map_svg("odd", "step", "expert", {0, 1}, {{"layer 0", 2, {0, kNan, 9, 1}}})));

  constexpr std::int64_t kExperts = 256;
  std::vector<double> steps;
  std::vector<HeatPanel> panels;
  for (int i = 0; i < 1000; ++i) steps.push_back(i);
  std::vector<double> values;
  for (std::size_t i = 0; i < kExperts * steps.size(); ++i)
    values.push_back(0.5 + static_cast<double>(i % 997) / 700);
  for (int layer = 0; layer < 58; ++layer)
    panels.push_back({fmt::format("layer {}", layer), kExperts, values});
  const std::string svg = heat_map_svg("load", "step", "expert", steps, panels);
  EXPECT_TRUE(well_formed(svg));
  EXPECT_NE(svg.find("16 of 58 shown"), std::string::npos);
  EXPECT_NE(svg.find(">layer 57<"), std::string::npos);
  EXPECT_LT(svg.size(), 32u << 20);
}

TEST(BarChart, ValuesAndShares) {
  const std::string svg =
      bar_chart_svg("time", "s", {{"forward", 3}, {"backward", 6}, {"data", 0}, {"x", kNan}});
  EXPECT_TRUE(well_formed(svg));
  EXPECT_NE(svg.find("6 s (66.7 %)"), std::string::npos);
  EXPECT_TRUE(well_formed(bar_chart_svg("none", "s", {})));
}

}  // namespace
}  // namespace switchyard
