// Streams of tokenised documents, and the rows cut from them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/token_shard.h"

namespace switchyard {

class RowLayout;  // data/row_layout.h

// Immutable, usable from several threads.
class DocumentStream {
 public:
  virtual ~DocumentStream() = default;
  virtual std::int64_t tokens() const = 0;
  virtual std::int64_t documents() const = 0;
  virtual DocumentRange document(std::int64_t index) const = 0;  // 0 <= index < documents()
  // Replaces `tokens` by the tokens [begin, end), and `starts` by the indices among them, from 1 on and
  // ascending, at which a document begins.
  virtual void read(std::int64_t begin, std::int64_t end, std::vector<std::int32_t>& tokens,
                    std::vector<std::int64_t>& starts) const = 0;
  // Replaces `counts` by one number for each of the tokens [begin, end): 0 for one that is no target. Empty:
  // all are targets.
  virtual void read_counts(std::int64_t /*begin*/, std::int64_t /*end*/,
                           std::vector<std::uint8_t>& counts) const {
    counts.clear();
  }
  virtual std::uint64_t fingerprint() const = 0;  // a hash of the documents' tokens
};

// The first token that is no id below `vocabulary`, and the index of its document.
struct OutsideToken {
  std::int32_t id;
  std::int64_t document;
};
std::optional<OutsideToken> first_outside(const DocumentStream& stream, std::int64_t vocabulary);

// A stream held in memory.
class StoredTokens : public DocumentStream {
 public:
  // Documents without tokens are skipped.
  void add_document(const std::vector<std::int32_t>& tokens) { add_document(tokens, {}); }
  // `counts`: 0 for a token that is no target, as long as `tokens`. Either all documents have one or none.
  void add_document(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> counts);
  std::int64_t tokens() const override { return static_cast<std::int64_t>(tokens_.size()); }
  std::int64_t documents() const override { return static_cast<std::int64_t>(starts_.size()); }
  DocumentRange document(std::int64_t index) const override {
    const auto i = static_cast<std::size_t>(index);
    return {starts_[i], i + 1 < starts_.size() ? starts_[i + 1] : tokens()};
  }
  void read(std::int64_t begin, std::int64_t end, std::vector<std::int32_t>& tokens,
            std::vector<std::int64_t>& starts) const override;
  void read_counts(std::int64_t begin, std::int64_t end, std::vector<std::uint8_t>& counts) const override;
  std::uint64_t fingerprint() const override;

 private:
  std::vector<std::int32_t> tokens_;
  std::vector<bool> counts_;  // as long as tokens_, or empty
  std::vector<std::int64_t> starts_;
};

// How the order of an epoch's rows is obtained: drawn and held in memory (four bytes per row, for two
// epochs), or computed on the fly.
enum class ShuffleKind { drawn, computed };

// Endless training data. Error(usage) naming `path` when the rows do not fill a batch.
std::unique_ptr<Dataset> make_training_rows(std::shared_ptr<const DocumentStream> stream,
                                            const PackingOptions& packing, ShuffleKind kind,
                                            const std::string& path);
// Held-out data in its original order, then padding.
std::unique_ptr<Dataset> make_held_out_rows(std::shared_ptr<const DocumentStream> stream,
                                            const PackingOptions& packing);

// Two overloads for a layout that the caller has made.
std::unique_ptr<Dataset> make_training_rows(std::shared_ptr<const DocumentStream> stream,
                                            std::unique_ptr<RowLayout> layout, const PackingOptions& packing,
                                            ShuffleKind kind);
std::unique_ptr<Dataset> make_held_out_rows(std::shared_ptr<const DocumentStream> stream,
                                            std::unique_ptr<RowLayout> layout, const PackingOptions& packing);

}  // namespace switchyard
