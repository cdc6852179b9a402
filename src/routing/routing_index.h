// RoutingIndex: the recorded experts of a text, found by its tokens.
#pragma once

#include <optional>

#include "routing/routing_file.h"

namespace switchyard {

// Attention looks back only, so the experts of a text's tokens are those of any recorded text that begins
// with the same tokens, as far as it does.
class RoutingIndex {
 public:
  explicit RoutingIndex(RoutingFile file);

  struct Found {
    const RoutingFile::Record* record = nullptr;
    std::int64_t tokens = 0;  // from the first one on, which the text and the record have in common
  };
  // The record that begins most like a text, in all but its last two tokens at least: the last token that a
  // model makes is never fed to it, and the end of a document may follow. Of several alike the one whose
  // source is `source`, or else the last of the file. nullopt where there is none.
  std::optional<Found> find(std::span<const std::int32_t> text, const RoutingSource& source) const;

  const RoutingFile& file() const { return file_; }

 private:
  RoutingFile file_;
  std::vector<std::size_t> order_;  // of the records: by their tokens, then as in the file
};

}  // namespace switchyard
