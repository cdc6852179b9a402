#include "convert/tensor_source.h"

#include <cctype>
#include <filesystem>
#include <utility>

#include "checkpoint/checkpoint_folder.h"
#include "core/error.h"
#include "core/json_file.h"
#include "gguf/gguf_weights.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

std::size_t digits_end(const std::string& text, std::size_t begin) {
  while (begin < text.size() && std::isdigit(static_cast<unsigned char>(text[begin]))) ++begin;
  return begin;
}

// True for an incomplete checkpoint too, so that it is refused as a checkpoint.
bool is_checkpoint(const fs::path& path) {
  std::error_code ignored;
  const bool is_hub = fs::exists(path / "model.safetensors", ignored) ||
                      fs::exists(path / "model.safetensors.index.json", ignored);
  return !is_hub && (fs::exists(path / "manifest.json", ignored) || is_checkpoint_path(path.string()));
}

}  // namespace

std::string name_of(SourceKind kind) {
  switch (kind) {
    case SourceKind::file:
      return "safetensors file";
    case SourceKind::gguf:
      return "GGUF file";
    case SourceKind::huggingface:
      return "Hugging Face folder";
    case SourceKind::checkpoint:
      break;
  }
  return "checkpoint";
}

bool NaturalOrder::operator()(const std::string& a, const std::string& b) const {
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    const std::size_t i_end = digits_end(a, i), j_end = digits_end(b, j);
    if (i_end > i && j_end > j) {
      // Without leading zeros, more digits are a larger number.
      while (i + 1 < i_end && a[i] == '0') ++i;
      while (j + 1 < j_end && b[j] == '0') ++j;
      if (i_end - i != j_end - j) return i_end - i < j_end - j;
      if (const int order = a.compare(i, i_end - i, b, j, j_end - j); order != 0) return order < 0;
      i = i_end;
      j = j_end;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  if ((i < a.size()) != (j < b.size())) return j < b.size();
  return a < b;  // differ in leading zeros at most
}

void TensorSource::add(SafetensorsFile file, const std::string& name) {
  std::error_code ignored;
  files_.push_back({name, static_cast<std::int64_t>(fs::file_size(file.path(), ignored))});
  for (const auto& [tensor, entry] : file.entries()) {
    const bool is_new = items_.emplace(tensor, Item{entry.dtype, entry.shape, files_.size() - 1}).second;
    if (!is_new) fail_usage("[checkpoint] {}: tensor {} is in two files", path_, in_quotes(tensor));
  }
  opened_.push_back(std::move(file));
}

void TensorSource::open_gguf() {
  kind_ = SourceKind::gguf;
  gguf_ = std::make_shared<GgufFile>(GgufFile::open(path_));
  std::error_code ignored;
  for (const std::string& part : gguf_->paths())
    files_.push_back(
        {fs::path(part).filename().string(), static_cast<std::int64_t>(fs::file_size(part, ignored))});
  for (const auto& [tensor, entry] : gguf_->entries())
    items_.emplace(tensor, Item{std::string(entry.type->name), entry.shape, entry.part});
  try {
    config_ = hub_config_of(*gguf_);
  } catch (const Error& error) {  // its tensors can be looked at all the same
    problem_ = error.what();
  }
}

void TensorSource::open_folder() {
  const WeightFolder folder = WeightFolder::open(path_);
  kind_ = SourceKind::huggingface;
  for (const SafetensorsFile& file : folder.files()) add(file, fs::path(file.path()).filename().string());
  const fs::path config = fs::path(path_) / "config.json";
  std::error_code ignored;
  if (fs::exists(config, ignored)) config_ = read_json_file(config.string());
}

void TensorSource::open_checkpoint_at(const std::string& path) {
  const CheckpointFolder checkpoint = CheckpointFolder::open(path);
  kind_ = SourceKind::checkpoint;
  const Manifest& m = checkpoint.manifest();
  config_ = m.config;
  details_ = {{"step", m.step},   {"version", m.version}, {"model", m.model}, {"mesh", m.mesh},
              {"ranks", m.ranks}, {"data", m.data},       {"rng", m.rng}};
  for (const ManifestFile& file : m.files) add(SafetensorsFile::open(path + "/" + file.name), file.name);
  for (const ManifestTensor& tensor : m.tensors) {
    if (!is_packed(tensor.dtype)) continue;
    Item& item = items_.at(tensor.name);
    item.dtype = name_of(tensor.dtype);
    item.shape = tensor.shape;
    item.packed = tensor.dtype;
  }
}

TensorSource TensorSource::open(const std::string& path) {
  TensorSource source;
  source.path_ = path;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) fail_usage("[checkpoint] {}: no such file or folder", path);
  if (GgufFile::is_gguf(path)) {
    source.open_gguf();
  } else if (!fs::is_directory(path, ignored)) {
    source.add(SafetensorsFile::open(path), fs::path(path).filename().string());
  } else if (is_checkpoint(path)) {
    std::error_code none;
    if (!fs::exists(fs::path(path) / "manifest.json", none))
      source.path_ = open_checkpoint(path, nullptr).path();
    source.open_checkpoint_at(source.path_);
  } else {
    source.open_folder();
  }
  return source;
}

std::span<const std::byte> TensorSource::bytes(const std::string& name) const {
  const auto item = items_.find(name);
  CHECK(item != items_.end(), "no tensor {}", name);
  if (gguf_) return gguf_->at(name).bytes;
  return opened_[item->second.file].entries().at(name).bytes;
}

Tensor TensorSource::read(const std::string& name) const {
  const auto item = items_.find(name);
  CHECK(item != items_.end(), "no tensor {}", name);
  return gguf_ ? gguf_->read(name) : opened_[item->second.file].read(name);
}

void TensorSource::release(const std::string& name) const {
  const auto item = items_.find(name);
  if (item == items_.end()) return;
  if (gguf_)
    release_pages(bytes(name));
  else
    opened_[item->second.file].release(name);
}

}  // namespace switchyard
