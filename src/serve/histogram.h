// Histogram: how many observations there are up to each of some bounds, as Prometheus counts them. It has no
// lock; Statistics guards its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::serve {

class Histogram {
 public:
  // `bounds` ascend and have no infinity; they must outlive the histogram.
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1) {}

  void observe(double value, std::int64_t times = 1);
  std::int64_t count() const;
  double sum() const { return sum_; }
  // Appends the lines `name`_bucket, _sum and _count. `labels` is what stands between the braces, or empty.
  void append_samples(std::string& text, std::string_view name, std::string_view labels) const;

  // 1 ms to 1,000 s; and 1 token to 200,000.
  static Histogram of_seconds();
  static Histogram of_tokens();

 private:
  std::span<const double> bounds_;
  std::vector<std::int64_t> counts_;  // of each bound alone; the last: beyond all of them
  double sum_ = 0;
};

}  // namespace switchyard::serve
