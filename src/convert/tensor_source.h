// TensorSource: anything on disk that holds tensors under names, opened for reading.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "gguf/gguf_file.h"

namespace switchyard {

enum class SourceKind { file, huggingface, checkpoint, gguf };

// "safetensors file", "Hugging Face folder", "checkpoint", "GGUF file".
std::string name_of(SourceKind kind);

// Names in the order people expect: runs of digits compare as numbers, so that layer 2 comes before 10.
struct NaturalOrder {
  bool operator()(const std::string& a, const std::string& b) const;
};

class TensorSource {
 public:
  struct File {
    std::string name;  // below the source's path; the file's own name for a file
    std::int64_t bytes = 0;
  };
  struct Item {
    std::string dtype;  // as in the file: "F32", …, of GGUF also "Q4_0", …, of a checkpoint also "int4", …
    Shape shape;        // of such a packed type in blocks
    std::size_t file = 0;  // index into files()
    std::optional<DType> packed = {};
    std::int64_t elements() const { return num_elements(shape) * (packed ? block_values(*packed) : 1); }
  };

  // A safetensors or GGUF file, a folder with model.safetensors (or its index), a checkpoint, or a run's
  // folder, which means its newest checkpoint. Error(usage) for anything else and for what is broken in its
  // structure; contents are not read.
  static TensorSource open(const std::string& path);

  SourceKind kind() const { return kind_; }
  const std::string& path() const { return path_; }
  const std::vector<File>& files() const { return files_; }
  const std::map<std::string, Item, NaturalOrder>& items() const { return items_; }
  // config.json of a Hugging Face folder, or what it would be for a GGUF file of a known family; the values
  // of a checkpoint's keys; null without.
  const nlohmann::json& config() const { return config_; }
  // Of a checkpoint: step, version, model, mesh, ranks, data and rng of its manifest; null without.
  const nlohmann::json& details() const { return details_; }
  const GgufFile* gguf() const { return gguf_.get(); }  // null for the other kinds

  // A tensor's bytes in its file, row-major; lives as long as this object. CHECKs that the name exists.
  std::span<const std::byte> bytes(const std::string& name) const;
  Tensor read(const std::string& name) const;  // as SafetensorsFile::read, or GgufFile::read
  // The process may let go of its pages.
  void release(const std::string& name) const;

 private:
  void add(SafetensorsFile file, const std::string& name);
  void open_folder();
  void open_gguf();
  void open_checkpoint_at(const std::string& path);

  SourceKind kind_ = SourceKind::file;
  std::string path_;
  std::vector<SafetensorsFile> opened_;
  std::shared_ptr<const GgufFile> gguf_;  // instead of these
  std::vector<File> files_;
  std::map<std::string, Item, NaturalOrder> items_;
  nlohmann::json config_, details_;
};

}  // namespace switchyard
