// Routing records: which experts each token of a text went to, in a file (docs/formats.md).
//
// A file is records one behind the other, each whole in itself, so that files can be joined, and what a
// killed run leaves behind can be read to its last whole record. Readers trust nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/mapped_file.h"

namespace switchyard {

// What of a model's routing is recorded: the numbers of its MoE layers without those of prediction layers, in
// order, the experts of each layer, and how many of them a token goes to.
struct RoutedLayers {
  std::vector<std::int32_t> layers;
  std::int64_t slots = 0, experts = 0;
};

// Where a text comes from. `step` is the training step, the row of `generate`, or the number of the text that
// a server made; of a training, `row` is the row of the step's batch and `first` the text's first token
// there.
struct RoutingSource {
  enum class Kind : std::uint32_t { train, generate, serve };
  Kind kind = Kind::train;
  std::int64_t step = 0, row = 0, first = 0;
  bool operator==(const RoutingSource&) const = default;
};

// The bytes of a record of tokens [S] and their experts [L,S,K], each below `routed.experts`.
std::string routing_record(const RoutedLayers& routed, const RoutingSource& source,
                           std::span<const std::int32_t> tokens, std::span<const std::uint16_t> experts);

class RoutingFile {
 public:
  struct Record {
    RoutingSource source;
    std::span<const std::int32_t> tokens;  // points into the mapped file
    const std::byte* experts = nullptr;    // [L,S,K], of one byte each where no layer has more than 256
    std::int64_t begin = 0;                // byte of the file
  };

  // Reads and checks all of a file. Error(usage) "[routing] PATH: record 3: …" for a file that is no such
  // file, ends inside a record, is damaged, or is of other layers, slots or experts than `routed`.
  static RoutingFile open(const std::string& path, const RoutedLayers& routed);
  // Bytes of the records at the beginning of a file that a training made before `step`; 0 without a file.
  static std::int64_t bytes_before(const std::string& path, std::int64_t step);

  const std::string& path() const { return path_; }
  const RoutedLayers& routed() const { return routed_; }
  const std::vector<Record>& records() const { return records_; }
  // The experts [K] of token `token` in the layer of place `layer` in routed().layers.
  void experts(const Record& record, std::int64_t layer, std::int64_t token,
               std::span<std::int32_t> ids) const;

 private:
  std::string path_;
  MappedFile file_;
  RoutedLayers routed_;
  std::vector<Record> records_;
};

}  // namespace switchyard
