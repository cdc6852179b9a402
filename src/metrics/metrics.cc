#include "metrics/metrics.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/error.h"
#include "metrics/tensorboard.h"

namespace switchyard {
namespace {

double wall_time_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

AppendFile create_event_file(const std::string& folder, double wall_time) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail_usage(
        "[tensorboard] cannot create the folder {}: {}; set base_output_directory to a folder that can be "
        "written, or enable_tensorboard=false",
        folder, error.message());
  }
  return AppendFile("tensorboard", folder + "/" + tensorboard_file_name(wall_time));
}

}  // namespace

void StepMetrics::set(std::string name, double value) {
  const auto place =
      std::find_if(values_.begin(), values_.end(), [&](const auto& v) { return v.first == name; });
  if (place != values_.end()) {
    place->second = value;
  } else {
    values_.emplace_back(std::move(name), value);
  }
}

const double* StepMetrics::find(std::string_view name) const {
  const auto place =
      std::find_if(values_.begin(), values_.end(), [&](const auto& v) { return v.first == name; });
  return place == values_.end() ? nullptr : &place->second;
}

std::string to_json_line(std::int64_t step, const StepMetrics& metrics) {
  std::string line = fmt::format("{{\"step\":{}", step);
  for (const auto& [name, value] : metrics.values()) {
    // Replacing invalid UTF-8 ensures that a strange name does not lose the step.
    line += "," + nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + ":";
    if (std::isfinite(value)) {
      fmt::format_to(std::back_inserter(line), "{:.17g}", value);
    } else {
      line += "null";
    }
  }
  return line + "}";
}

MetricsWriter::MetricsWriter(std::string jsonl_path, const std::string& tensorboard_dir)
    : jsonl_path_(std::move(jsonl_path)) {
  const double now = wall_time_now();
  try {
    if (!jsonl_path_.empty()) jsonl_ = AppendFile("metrics_file", jsonl_path_);
    if (!tensorboard_dir.empty()) events_ = create_event_file(tensorboard_dir, now);
  } catch (...) {
    jsonl_.discard();
    throw;
  }
  if (!events_.is_open()) return;
  events_.clear();
  events_.append(tensorboard_file_header(now));
}

std::vector<std::string> MetricsWriter::continue_from(std::int64_t step) {
  CHECK(fresh_);
  fresh_ = false;
  std::vector<std::string> lines;
  if (jsonl_.is_open() && std::filesystem::is_regular_file(jsonl_path_)) {
    std::ifstream file(jsonl_path_, std::ios::binary);
    std::int64_t bytes = 0;
    for (std::string line; std::getline(file, line) && !file.eof();) {
      const auto object = nlohmann::json::parse(line, nullptr, false);
      if (!object.is_object() || !object.contains("step") || !object["step"].is_number_integer() ||
          object["step"] >= step)
        break;
      bytes += static_cast<std::int64_t>(line.size()) + 1;
      lines.push_back(std::move(line));
    }
    jsonl_.keep(bytes);
  }
  if (events_.is_open()) events_.append(tensorboard_start(wall_time_now(), step));
  return lines;
}

void MetricsWriter::sync() const {
  if (jsonl_.is_open()) jsonl_.sync();
}

void MetricsWriter::write(std::int64_t step, const StepMetrics& metrics) {
  if (fresh_ && jsonl_.is_open()) jsonl_.clear();
  fresh_ = false;
  if (jsonl_.is_open()) jsonl_.append(to_json_line(step, metrics) + "\n");
  if (events_.is_open()) events_.append(tensorboard_step(wall_time_now(), step, metrics));
}

void MetricsWriter::close() {
  if (fresh_ && jsonl_.is_open()) jsonl_.clear();
  jsonl_.close();
  events_.close();
}

}  // namespace switchyard
