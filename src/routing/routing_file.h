// Routing records: the experts of each token of a text, stored in a file (docs/run-files.md).
//
// A file is a sequence of self-contained records. So files can be concatenated, and a file that a killed run
// left can be read up to its last complete record. Readers check everything.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/mapped_file.h"
#include "switchyard/routing.h"

namespace switchyard {

// The parts of a model's routing that are recorded: the numbers of its MoE layers in order (without
// prediction layers), the experts in each layer, and the experts for each token.
struct RoutedLayers {
  std::vector<std::int32_t> layers;
  std::int64_t slots = 0, experts = 0;
};

// The origin of a text. `step` is the training step, the row of `generate`, or
// the server's number of the text. In training, `row` is the row of the step's
// batch and `first` is the index of the text's first token in that row.
struct RoutingSource {
  enum class Kind : std::uint32_t { train, generate, serve };
  Kind kind = Kind::train;
  std::int64_t step = 0, row = 0, first = 0;
  bool operator==(const RoutingSource&) const = default;
};

// The id in a record's experts [L,S,K] of a slot whose token goes to no expert.
inline constexpr std::uint16_t kNoExpert = 0xffff;

// The bytes of a record of tokens [S] and their experts [L,S,K], each below `routed.experts` or kNoExpert.
std::string routing_record(const RoutedLayers& routed, const RoutingSource& source,
                           std::span<const std::int32_t> tokens, std::span<const std::uint16_t> experts);

class RoutingFile {
 public:
  struct Record {
    RoutingSource source;
    std::span<const std::int32_t> tokens;  // points into the mapped file
    const std::byte* experts = nullptr;    // [L,S,K], each of one byte or two
    bool has_gaps = false;                 // of version 2: slots may have no expert
    std::int64_t begin = 0;                // byte offset in the file
  };

  // Reads and checks a whole file. Error(usage) "[routing] PATH: record 3: …" for a file of another kind,
  // that ends inside a record, is damaged, or has other layers, slots or experts than `routed`.
  static RoutingFile open(const std::string& path, const RoutedLayers& routed);
  // Takes the layers, slots and experts of the first record for those of all.
  static RoutingFile open(const std::string& path);
  // Reads records in memory, which messages call `name`.
  static RoutingFile of_bytes(std::string bytes, const std::string& name);
  // Bytes of the leading records that a training wrote before `step`; 0 without a file.
  static std::int64_t bytes_before(const std::string& path, std::int64_t step);

  const std::string& path() const { return path_; }
  const RoutedLayers& routed() const { return routed_; }
  const std::vector<Record>& records() const { return records_; }
  // The experts [K] of token `token` in the layer with index `layer` in routed().layers, with kUnusedChoice
  // (kernels/moe/route.h) where a slot has none.
  void experts(const Record& record, std::int64_t layer, std::int64_t token,
               std::span<std::int32_t> ids) const;

  // With its experts in numbers.
  RoutedText text(const Record& record) const;

 private:
  static RoutingFile read(MappedFile file, const std::string& path, const RoutedLayers* routed);

  std::string path_;
  MappedFile file_;
  RoutedLayers routed_;
  std::vector<Record> records_;
};

}  // namespace switchyard
