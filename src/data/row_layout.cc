#include "data/row_layout.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace switchyard {
namespace {

// The row within one document: up to `sequence` inputs; an input that ends the document has no target.
RowRange within(const DocumentRange& document, std::int64_t begin, std::int64_t sequence) {
  const std::int64_t end = std::min(begin + sequence + 1, document.end);
  return {begin, end, std::min(sequence, end - begin)};
}

// Rows of equally many tokens, wherever documents begin.
class EveryToken : public RowLayout {
 public:
  EveryToken(const DocumentStream& stream, std::int64_t sequence, DataSide side)
      : tokens_(stream.tokens()), sequence_(sequence) {
    const std::int64_t targets = std::max<std::int64_t>(0, tokens_ - 1);
    rows_ = (targets + (side == DataSide::held_out ? sequence - 1 : 0)) / sequence;
  }
  std::int64_t rows() const override { return rows_; }
  RowRange row(std::int64_t row) const override {
    const std::int64_t begin = row * sequence_, end = std::min(begin + sequence_ + 1, tokens_);
    return {begin, end, end - begin - 1};
  }

 private:
  std::int64_t tokens_, sequence_, rows_;
};

// The beginning of each document.
class OneDocument : public RowLayout {
 public:
  OneDocument(const DocumentStream& stream, std::int64_t sequence) : stream_(stream), sequence_(sequence) {}
  std::int64_t rows() const override { return stream_.documents(); }
  RowRange row(std::int64_t row) const override {
    const DocumentRange document = stream_.document(row);
    return within(document, document.begin, sequence_);
  }

 private:
  const DocumentStream& stream_;
  std::int64_t sequence_;
};

// Each document in as many rows as its targets fill.
class SplitDocuments : public RowLayout {
 public:
  SplitDocuments(const DocumentStream& stream, std::int64_t sequence) : stream_(stream), sequence_(sequence) {
    for (std::int64_t d = 0; d < stream.documents(); ++d) {
      if (d % kEvery == 0) rows_before_.push_back(rows_);
      rows_ += rows_of(stream.document(d));
    }
  }
  std::int64_t rows() const override { return rows_; }
  RowRange row(std::int64_t row) const override {
    const auto block = std::upper_bound(rows_before_.begin(), rows_before_.end(), row) - 1;
    std::int64_t document = (block - rows_before_.begin()) * kEvery, left = row - *block;
    for (;; ++document) {
      const DocumentRange range = stream_.document(document);
      const std::int64_t rows = rows_of(range);
      if (left < rows) return within(range, range.begin + left * sequence_, sequence_);
      left -= rows;
    }
  }

 private:
  static constexpr std::int64_t kEvery = 256;
  std::int64_t rows_of(const DocumentRange& document) const {
    return std::max<std::int64_t>(1, (document.end - document.begin - 2 + sequence_) / sequence_);
  }

  const DocumentStream& stream_;
  std::int64_t sequence_, rows_ = 0;
  std::vector<std::int64_t> rows_before_;  // the documents 0, kEvery, 2 kEvery, ...
};

// Rows of all tokens, each ending where one document more would begin.
class FewDocuments : public RowLayout {
 public:
  FewDocuments(const DocumentStream& stream, std::int64_t sequence, std::int64_t most)
      : stream_(stream), sequence_(sequence), most_(most) {
    for (Place place = after({}); place.token + 1 < stream.tokens(); place = next(place)) {
      if (rows_++ % kEvery == 0) places_.push_back(place);
    }
  }
  std::int64_t rows() const override { return rows_; }
  RowRange row(std::int64_t row) const override {
    Place place = places_[static_cast<std::size_t>(row / kEvery)];
    for (std::int64_t i = 0; i < row % kEvery; ++i) place = next(place);
    const std::int64_t end = end_of(place), inputs = end - place.token;
    return {place.token, inputs == sequence_ ? std::min(end + 1, stream_.tokens()) : end, inputs};
  }

 private:
  static constexpr std::int64_t kEvery = 64;
  struct Place {
    std::int64_t token = 0, document = 0;  // the first one that begins after the token
  };
  Place after(Place place) const {
    while (place.document < stream_.documents() && stream_.document(place.document).begin <= place.token)
      ++place.document;
    return place;
  }
  std::int64_t end_of(const Place& place) const {
    const std::int64_t excluded = place.document + most_ - 1;
    const std::int64_t limit =
        excluded < stream_.documents() ? stream_.document(excluded).begin : stream_.tokens();
    return std::min(place.token + sequence_, limit);
  }
  Place next(const Place& place) const { return after({end_of(place), place.document}); }

  const DocumentStream& stream_;
  std::int64_t sequence_, most_, rows_ = 0;
  std::vector<Place> places_;  // of the rows 0, kEvery, 2 kEvery, ...
};

}  // namespace

std::unique_ptr<RowLayout> make_row_layout(const DocumentStream& stream, const PackingOptions& packing,
                                           DataSide side) {
  if (!packing.pack && packing.truncate) return std::make_unique<OneDocument>(stream, packing.sequence);
  if (!packing.pack) return std::make_unique<SplitDocuments>(stream, packing.sequence);
  if (packing.most_documents > 0)
    return std::make_unique<FewDocuments>(stream, packing.sequence, packing.most_documents);
  return std::make_unique<EveryToken>(stream, packing.sequence, side);
}

}  // namespace switchyard
