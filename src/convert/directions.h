// The two directions of a conversion, and the code that they share.
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

// True for the router's bias. It stays in float32 whatever the weights become: bf16 would round steps away.
bool keeps_its_dtype(const std::string& our_name);

// Counts the tensors to convert.
ConvertReport report_of(std::span<const StoredPair> pairs, ConvertTarget target);
void add_sizes(std::span<const PlannedFile> files, ConvertReport& report);

// The data that identifies a conversion: source files with size and time, target, dtype, version.
nlohmann::json job_of(const ConvertRequest& request, ConvertTarget target,
                      std::span<const std::string> files);

}  // namespace switchyard
