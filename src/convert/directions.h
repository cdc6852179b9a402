// The two directions of a conversion, and what they share.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "convert/convert.h"
#include "convert/resumable_folder.h"
#include "convert/stored_names.h"

namespace switchyard {

ConvertReport convert_to_switchyard(const ConvertRequest& request, const ConvertLine& line);
ConvertReport convert_to_huggingface(const ConvertRequest& request, const ConvertLine& line);

// The router's bias stays in float32 whatever the weights are cast to: its steps would round away.
bool keeps_its_dtype(const std::string& our_name);

// Counts of what is to be moved.
ConvertReport report_of(std::span<const StoredPair> pairs, ConvertTarget target);
void add_sizes(std::span<const PlannedFile> files, ConvertReport& report);

// What distinguishes a conversion: source files with size and time, target, dtype, version.
nlohmann::json job_of(const ConvertRequest& request, ConvertTarget target,
                      std::span<const std::string> files);

}  // namespace switchyard
