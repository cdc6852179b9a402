#include "serve/histogram.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace switchyard::serve {

void Histogram::observe(double value, std::int64_t times) {
  const auto bound = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  counts_[static_cast<std::size_t>(bound)] += times;
  sum_ += value * static_cast<double>(times);
}

std::int64_t Histogram::count() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
}

void Histogram::append_samples(std::string& text, std::string_view name, std::string_view labels) const {
  const std::string_view comma = labels.empty() ? "" : ",";
  std::int64_t below = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    text += fmt::format("{}_bucket{{{}{}le=\"{}\"}} {}\n", name, labels, comma, bound, below);
  }
  const std::string braces = labels.empty() ? "" : fmt::format("{{{}}}", labels);
  text += fmt::format("{0}_sum{1} {2}\n{0}_count{1} {3}\n", name, braces, sum_, below);
}

Histogram Histogram::of_seconds() {
  static constexpr double kBounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                       2.5,   5,      10,    25,   50,    100,  250, 500,  1000};
  return Histogram(kBounds);
}

Histogram Histogram::of_tokens() {
  static constexpr double kBounds[] = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                       1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
  return Histogram(kBounds);
}

}  // namespace switchyard::serve
