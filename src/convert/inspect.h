// The report of `switchyard inspect` on one source of tensors: as text for people, as data for programs.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "convert/tensor_source.h"
#include "convert/values.h"

namespace switchyard {

struct InspectOptions {
  bool all = false;         // one line for each tensor; false: tensors that differ only in numbers share one
  bool statistics = false;  // reads every element
  bool hashes = false;      // reads every byte
};

struct Inspection {
  std::map<std::string, Statistics> statistics;  // of numeric tensors
  std::map<std::string, std::string> hashes;     // XXH3-64 of a tensor's bytes, 16 digits
  std::int64_t parameters = 0;                   // without optimizer state
  std::int64_t active_parameters = 0;            // used by each token; `parameters` when unknown
  std::int64_t bytes = 0;                        // size of all files
};

// Reads what the options ask for, one tensor after the other.
Inspection inspect(const TensorSource& source, const InspectOptions& options);

std::string inspection_text(const TensorSource& source, const Inspection& inspection,
                            const InspectOptions& options);
nlohmann::json inspection_json(const TensorSource& source, const Inspection& inspection);

// Helpers that tables of tensors share.
std::string with_commas(std::int64_t n);    // 1,234,567
std::string byte_text(std::int64_t bytes);  // 1.2 GiB
bool is_optimizer_state(const std::string& name);

}  // namespace switchyard
