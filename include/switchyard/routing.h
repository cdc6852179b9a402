// The experts that a model's router chose: of a text, of a batch, or of a routing record on disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "switchyard/error.h"

namespace switchyard {

struct RoutedText {
  std::vector<std::int32_t> tokens;  // whose experts these are
  std::vector<std::int32_t> layers;  // the numbers of the MoE layers
  std::int64_t slots = 0;            // experts of a token in a layer
  std::int64_t experts = 0;          // of a layer
  // [layers, tokens, slots], the order in which the router chose them; -1: the slot has none.
  std::vector<std::int32_t> chosen;
  // A record says who wrote it ("train", "generate" or "serve"), and numbers its texts (docs/run-files.md).
  std::string source = {};
  std::int64_t step = 0, row = 0, first = 0;
};

// Reads a routing record (routing_record=FILE) whole, and checks all of it. Error(usage) that names the file,
// the record and the fault.
std::vector<RoutedText> read_routing_record(const std::string& path);

}  // namespace switchyard
