#include "convert/convert.h"

#include <filesystem>
#include <string_view>

#include "checkpoint/checkpoint_folder.h"
#include "convert/directions.h"
#include "core/error.h"
#include "models/families/hub_source.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

ConvertTarget target_of(const ConvertRequest& request) {
  std::error_code error;
  if (!fs::exists(request.source, error)) fail_usage("[convert] {}: no such file or folder", request.source);
  const bool is_hub = is_hub_source(request.source);
  if (!is_hub && !is_checkpoint_path(request.source)) {
    fail_usage(
        "[convert] {}: expected a Hugging Face folder (config.json and safetensors), a GGUF file, a "
        "checkpoint "
        "or the folder of a run",
        request.source);
  }
  if (request.weights && request.target == ConvertTarget::huggingface)
    fail_usage("[convert] --to huggingface --weights {}: such weights stand in a checkpoint only",
               name_of(*request.weights));
  const bool to_ours = is_hub || request.weights || !request.adapter.empty();
  const ConvertTarget target = to_ours ? ConvertTarget::switchyard : ConvertTarget::huggingface;
  if (request.target && *request.target != target) {
    fail_usage("[convert] --to {}: {} {}", is_hub ? "huggingface" : "switchyard", request.source,
               fs::is_directory(request.source, error) ? "is one already"
                                                       : "becomes a checkpoint first (--to switchyard)");
  }
  return target;
}

nlohmann::json file_of(const std::string& path) {
  std::error_code error;
  return {fs::path(path).filename().string(), fs::file_size(path, error),
          fs::last_write_time(path, error).time_since_epoch().count()};
}

nlohmann::json job_without_files(const ConvertRequest& request, ConvertTarget target) {
  std::error_code error;
  return {{"source", fs::weakly_canonical(request.source, error).string()},
          {"to", target == ConvertTarget::huggingface ? "huggingface" : "switchyard"},
          {"dtype", request.dtype ? std::string(name_of(*request.dtype)) : "as stored"},
          {"weights", request.weights ? std::string(name_of(*request.weights)) : "as stored"},
          {"adapter", request.adapter},
          {"file_bytes", request.file_bytes.value_or(0)},
          {"version", SWITCHYARD_VERSION}};
}

}  // namespace

bool keeps_its_dtype(const std::string& our_name) {
  return our_name.ends_with(".gate_bias");
}

ConvertReport report_of(std::span<const StoredPair> pairs, ConvertTarget target) {
  ConvertReport report;
  report.target = target;
  report.tensors = static_cast<std::int64_t>(pairs.size());
  for (const StoredPair& pair : pairs) {
    report.parameters += num_elements(pair.shape);
    if (pair.ours.find(".experts.") != std::string::npos && pair.ours.ends_with(".wo")) ++report.experts;
  }
  return report;
}

void add_sizes(std::span<const PlannedFile> files, ConvertReport& report) {
  report.files = static_cast<std::int64_t>(files.size());
  for (const PlannedFile& file : files) report.bytes += file.bytes;
}

nlohmann::json job_of(const ConvertRequest& request, ConvertTarget target,
                      std::span<const std::string> files) {
  nlohmann::json job = job_without_files(request, target);
  job["files"] = nlohmann::json::array();
  for (const std::string& file : files) job["files"].push_back(file_of(file));
  return job;
}

ConvertReport convert(const ConvertRequest& request, const ConvertLine& line) {
  return target_of(request) == ConvertTarget::switchyard ? convert_to_switchyard(request, line)
                                                         : convert_to_huggingface(request, line);
}

}  // namespace switchyard
