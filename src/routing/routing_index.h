// RoutingIndex: finds the recorded experts of a text by the text's tokens.
#pragma once

#include <optional>

#include "routing/routing_file.h"

namespace switchyard {

// Attention looks back only. So where a recorded text begins with the same tokens as another text, both have
// the same experts for these tokens.
class RoutingIndex {
 public:
  explicit RoutingIndex(RoutingFile file);

  struct Found {
    const RoutingFile::Record* record = nullptr;
    std::int64_t tokens = 0;  // number of leading tokens that text and record share
  };
  // The record that shares the most leading tokens with a text: at least all but the text's last two, as a
  // model's last token is never fed to it, and an end of document may follow. Among equal records the one
  // with source `source`, or else the last in the file. nullopt when there is none.
  std::optional<Found> find(std::span<const std::int32_t> text, const RoutingSource& source) const;

  const RoutingFile& file() const { return file_; }

 private:
  RoutingFile file_;
  std::vector<std::size_t> order_;  // indices of records, by tokens, then by place in the file
};

}  // namespace switchyard
