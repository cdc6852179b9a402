#include "data/mixture.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "data/packing.h"

namespace switchyard {
namespace {

constexpr std::int64_t kPeriod = 65536;

// Divides the kPeriod rows of a period among the weights by largest remainder; each share is at least 1.
std::vector<std::int64_t> shares_of(const std::vector<double>& weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto free = static_cast<double>(kPeriod - static_cast<std::int64_t>(weights.size()));
  std::vector<std::int64_t> shares;
  std::vector<std::pair<double, std::size_t>> rests;
  std::int64_t given = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double exact = weights[i] / total * static_cast<double>(kPeriod);
    // The whole part of the share, at least 1, so that it leaves 1 for each other weight.
    const auto whole = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::min(exact, free + 1)));
    shares.push_back(whole);
    rests.emplace_back(static_cast<double>(whole) - exact, i);
    given += whole;
  }
  std::stable_sort(rests.begin(), rests.end());
  for (std::size_t next = 0; given < kPeriod; ++next, ++given) ++shares[rests[next % rests.size()].second];
  while (given > kPeriod) {
    --*std::max_element(shares.begin(), shares.end());
    --given;
  }
  return shares;
}

class Mixture : public Dataset {
 public:
  Mixture(std::vector<std::unique_ptr<Dataset>> parts, const std::vector<double>& weights)
      : parts_(std::move(parts)), shares_(shares_of(weights)) {
    lay_out();
  }

  std::int64_t rows() const override {
    std::int64_t all = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const std::int64_t periods = (parts_[i]->rows() + shares_[i] - 1) / shares_[i];
      all = std::max(all, periods * kPeriod);
    }
    return all;
  }
  std::string description() const override {
    std::string text = fmt::format("a mixture of {} parts:", parts_.size());
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      text += fmt::format("{} {:.4g}% {}", i == 0 ? "" : ";", 100 * static_cast<double>(shares_[i]) / kPeriod,
                          parts_[i]->description());
    }
    return text;
  }
  std::uint64_t fingerprint() const override {
    std::vector<std::uint64_t> parts;
    for (const auto& part : parts_) parts.push_back(part->fingerprint());
    return XXH3_64bits(parts.data(), parts.size() * sizeof(parts[0]));
  }

  Batch read(std::int64_t first_row, std::int64_t rows) override {
    CHECK(first_row >= 0 && rows >= 1, "rows {} from {}", rows, first_row);
    // The first row of each part in this batch, and the number of rows: a part's rows follow each other.
    std::vector<std::pair<std::int64_t, std::int64_t>> taken(parts_.size());
    for (std::int64_t position = first_row; position < first_row + rows; ++position) {
      auto& [first, count] = taken[part_at(position)];
      if (count++ == 0) first = row_at(position);
    }
    std::vector<Batch> batches;
    for (std::size_t i = 0; i < parts_.size(); ++i)
      batches.push_back(taken[i].second > 0 ? parts_[i]->read(taken[i].first, taken[i].second) : Batch());
    const std::int64_t sequence = batches[part_at(first_row)].inputs.shape()[1];
    Batch out = empty_batch(rows, sequence);
    for (std::int64_t b = 0; b < rows; ++b) {
      const std::size_t part = part_at(first_row + b);
      copy_rows(batches[part], row_at(first_row + b) - taken[part].first, out, b, 1);
    }
    return out;
  }

 private:
  struct Slot {
    std::uint32_t part, rank;  // rank: the part's rows that come earlier in the period
  };

  // Gives each place of a period to the part that is furthest behind its share.
  void lay_out() {
    std::vector<std::int64_t> behind(parts_.size(), 0);
    std::vector<std::uint32_t> used(parts_.size(), 0);
    for (std::int64_t place = 0; place < kPeriod; ++place) {
      for (std::size_t i = 0; i < parts_.size(); ++i) behind[i] += shares_[i];
      const auto next =
          static_cast<std::size_t>(std::max_element(behind.begin(), behind.end()) - behind.begin());
      behind[next] -= kPeriod;
      slots_.push_back({static_cast<std::uint32_t>(next), used[next]++});
    }
    for (std::size_t i = 0; i < parts_.size(); ++i)
      CHECK(used[i] == shares_[i], "{} of {}", used[i], shares_[i]);
  }

  const Slot& slot(std::int64_t position) const {
    return slots_[static_cast<std::size_t>(position % kPeriod)];
  }
  std::size_t part_at(std::int64_t position) const { return slot(position).part; }
  std::int64_t row_at(std::int64_t position) const {
    return position / kPeriod * shares_[part_at(position)] + slot(position).rank;
  }

  std::vector<std::unique_ptr<Dataset>> parts_;
  std::vector<std::int64_t> shares_;  // of kPeriod
  std::vector<Slot> slots_;           // of a period
};

class Concatenation : public Dataset {
 public:
  explicit Concatenation(std::vector<std::unique_ptr<Dataset>> parts) : parts_(std::move(parts)) {}
  std::int64_t rows() const override {
    std::int64_t all = 0;
    for (const auto& part : parts_) all += part->rows();
    return all;
  }
  std::string description() const override {
    return fmt::format("{} held-out parts, {} rows", parts_.size(), rows());
  }

  Batch read(std::int64_t first_row, std::int64_t rows) override {
    // Starts as padding, which a part gives for rows past its last one.
    Batch out = parts_.back()->read(parts_.back()->rows(), rows);
    std::int64_t begin = 0;
    for (const auto& part : parts_) {
      const std::int64_t from = std::max(first_row, begin),
                         to = std::min(first_row + rows, begin + part->rows());
      if (from < to) {
        const Batch piece = part->read(from - begin, to - from);
        copy_rows(piece, 0, out, from - first_row, to - from);
      }
      begin += part->rows();
    }
    return out;
  }

 private:
  std::vector<std::unique_ptr<Dataset>> parts_;
};

}  // namespace

std::unique_ptr<Dataset> make_mixture(std::vector<std::unique_ptr<Dataset>> parts,
                                      const std::vector<double>& weights) {
  CHECK(!parts.empty() && parts.size() == weights.size() && parts.size() <= 1024, "{} parts, {} weights",
        parts.size(), weights.size());
  return std::make_unique<Mixture>(std::move(parts), weights);
}

std::unique_ptr<Dataset> make_concatenation(std::vector<std::unique_ptr<Dataset>> parts) {
  CHECK(!parts.empty(), "no parts");
  return std::make_unique<Concatenation>(std::move(parts));
}

}  // namespace switchyard
