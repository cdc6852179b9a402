#include "engine/own_adapter.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/json_file.h"
#include "engine/initial_weights.h"
#include "models/parameters.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "adapter/form.json";

nlohmann::json base_of(const Config& config, const ModelConfig& model) {
  const std::string& path = config.get_string("load_parameters_path");
  return {{"path", path},
          {"architecture", architecture_hash(model)},
          {"files", weights_hash(path)},
          {"seed", path.empty() ? nlohmann::json(model.init_seed) : nlohmann::json()}};
}

nlohmann::json form_of(const CheckpointFolder& checkpoint) {
  return read_json_file(checkpoint.path() + "/" + kFile);
}

}  // namespace

std::string weights_hash(const std::string& path) {
  constexpr std::int64_t kEnd = std::int64_t{1} << 20;
  if (path.empty()) return "";
  std::vector<fs::path> files;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    for (const auto& entry : fs::recursive_directory_iterator(path, ignored)) {
      const std::string type = entry.path().extension();
      const std::string name = entry.path().filename();
      const bool says_how = name == "adapter_config.json" || name == fs::path(kFile).filename();
      if (entry.is_regular_file() && (type == ".safetensors" || type == ".gguf" || says_how))
        files.push_back(entry.path());
    }
  } else {
    files.emplace_back(path);
  }
  std::ranges::sort(files);
  std::uint64_t hash = 0;
  for (const fs::path& file : files) {
    std::ifstream stream(file, std::ios::binary);
    const auto size = static_cast<std::int64_t>(fs::file_size(file, ignored));
    std::string bytes = file.filename().string() + std::to_string(size);
    for (const std::int64_t begin : {std::int64_t{0}, std::max(kEnd, size - kEnd)}) {
      std::string part(static_cast<std::size_t>(std::clamp<std::int64_t>(size - begin, 0, kEnd)), '\0');
      stream.seekg(begin);
      stream.read(part.data(), static_cast<std::streamsize>(part.size()));
      bytes += part;
    }
    hash ^= XXH3_64bits_withSeed(bytes.data(), bytes.size(), hash);
  }
  return fmt::format("{:016x}", hash);
}

bool holds_adapter(const CheckpointFolder& checkpoint) {
  return std::ranges::any_of(checkpoint.manifest().extras,
                             [](const ManifestExtra& extra) { return extra.name == kFile; });
}

std::string base_path_of(const CheckpointFolder& checkpoint) {
  return form_of(checkpoint).at("base").at("path");
}

ExtraFile adapter_file(const Config& config, const ModelConfig& model, const Adapter& adapter) {
  nlohmann::json weights = nlohmann::json::object();
  for (const auto& [name, how] : adapter.weights)
    weights[name] = {{"rank", how.rank}, {"scale", how.scale}, {"one_a", how.one_a}};
  return {kFile,
          nlohmann::json({{"weights", weights}, {"whole", adapter.whole}, {"base", base_of(config, model)}})
                  .dump(1) +
              "\n"};
}

void check_base(const CheckpointFolder& checkpoint, const Config& config, const ModelConfig& model) {
  const nlohmann::json stated = form_of(checkpoint).at("base"), own = base_of(config, model);
  for (const char* part : {"architecture", "files", "seed"}) {
    if (stated.at(part) != own.at(part))
      fail_usage("[adapter] {}: was trained beside {} ({} {}), this run has {} ({} {})", checkpoint.path(),
                 in_quotes(stated.at("path").get<std::string>()), part, stated.at(part).dump(),
                 in_quotes(own.at("path").get<std::string>()), part, own.at(part).dump());
  }
}

PeftAdapter read_adapter(const std::string& path, const Config& config, const ModelConfig& model) {
  const auto as_stored = [&] {
    if (is_checkpoint_path(path)) return read_own_adapter(path, config, model);
    const AdapterBase base = adapter_base(config, model);
    return read_peft(path, model, *base.family, base.hub_config);
  };
  PeftAdapter read = as_stored();
  const auto factor = static_cast<float>(config.get_float("adapter_scale"));
  for (auto& [name, how] : read.adapter.weights) how.scale *= factor;
  return read;
}

PeftAdapter read_own_adapter(const std::string& path, const Config& config, const ModelConfig& model) {
  const CheckpointFolder checkpoint = open_checkpoint(path, nullptr);
  if (!holds_adapter(checkpoint))
    fail_usage("[adapter] {}: holds a whole model; expected a run with lora_rank, or a folder of PEFT", path);
  ModelConfig base = model;
  base.adapter = nullptr;
  check_base(checkpoint, config, base);
  PeftAdapter read;
  read.folder = checkpoint.path();
  const nlohmann::json form = form_of(checkpoint);
  for (const auto& [name, how] : form.at("weights").items())
    read.adapter.weights[name] = {how.at("rank"), how.at("scale"), how.at("one_a")};
  for (const auto& name : form.at("whole")) read.adapter.whole.insert(name.get<std::string>());
  base.adapter = std::make_shared<const Adapter>(read.adapter);
  for (const ParameterSpec& spec : parameter_specs(base)) {
    if (!spec.of_adapter) continue;
    const Tensor values(spec.dtype, spec.shape);
    checkpoint.read_parameter(spec.name, spec.shape, "", {Shape(spec.shape.size()), spec.shape},
                              values.raw());
    read.tensors[spec.name] = values;
  }
  return read;
}

bool has_peft_names(const Config& config, const ModelConfig& model) {
  try {
    adapter_base(config, model);
    return true;
  } catch (const Error&) {  // which says what no family can
    return false;
  }
}

std::size_t write_as_peft(const std::string& path, const std::string& folder, PeftForm form) {
  const CheckpointFolder checkpoint = open_checkpoint(path, nullptr);
  if (!holds_adapter(checkpoint))
    fail_usage("[convert] --export-adapter {}: expected a run that trained an adapter (lora_rank)", path);
  Config config = config_of_stored(checkpoint.manifest().config, checkpoint.path());
  const std::string base_path = base_path_of(checkpoint);
  config.set("load_parameters_path", base_path, "the run");
  ModelConfig model = model_config(config);
  model.adapter = nullptr;
  const PeftAdapter adapter = read_own_adapter(path, config, model);
  const AdapterBase base = adapter_base(config, model);
  write_peft(folder, adapter.adapter, adapter.tensors, model, *base.family, base.hub_config, form, base_path);
  return adapter.adapter.weights.size();
}

}  // namespace switchyard
