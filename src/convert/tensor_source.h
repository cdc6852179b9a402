// TensorSource: anything on disk that holds named tensors, opened for reading.
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

// Names a kind: "safetensors file", "Hugging Face folder", "checkpoint" or "GGUF file".
std::string name_of(SourceKind kind);

// Orders names as people expect: runs of digits compare as numbers, so layer 2 comes before layer 10.
struct NaturalOrder {
  bool operator()(const std::string& a, const std::string& b) const;
};

class TensorSource {
 public:
  struct File {
    std::string name;  // path below the source's; for a single file its own name
    std::int64_t bytes = 0;
  };
  struct Item {
    std::string dtype;  // as stored: "F32", …; for GGUF also "Q4_0", …; for a checkpoint also "int4", …
    Shape shape;        // for a packed type in blocks
    std::size_t file = 0;  // index into files()
    std::optional<DType> packed = {};
    std::int64_t elements() const { return num_elements(shape) * (packed ? block_values(*packed) : 1); }
  };

  // Opens a safetensors or GGUF file, a folder with model.safetensors (or its index),
  // a checkpoint, or the newest checkpoint of a run's folder. Error(usage) for
  // anything else and for a broken structure. Does not read the contents of tensors.
  static TensorSource open(const std::string& path);

  SourceKind kind() const { return kind_; }
  const std::string& path() const { return path_; }
  const std::vector<File>& files() const { return files_; }
  const std::map<std::string, Item, NaturalOrder>& items() const { return items_; }
  // config.json of a Hugging Face folder, or its equivalent for a GGUF file of a known family; for a
  // checkpoint the values of its keys; else null.
  const nlohmann::json& config() const { return config_; }
  // Why config() is null, where a GGUF file's model cannot be told from its metadata; else empty.
  const std::string& problem() const { return problem_; }
  // A checkpoint's step, version, model, mesh, ranks, data and rng, from its manifest; else null.
  const nlohmann::json& details() const { return details_; }
  const GgufFile* gguf() const { return gguf_.get(); }  // null for the other kinds

  // A tensor's bytes in its file, row-major; valid as long as this object. CHECKs that the name exists.
  std::span<const std::byte> bytes(const std::string& name) const;
  Tensor read(const std::string& name) const;  // as SafetensorsFile::read, or GgufFile::read
  // Tells the system that the tensor's pages may be dropped from memory.
  void release(const std::string& name) const;

 private:
  void add(SafetensorsFile file, const std::string& name);
  void open_folder();
  void open_gguf();
  void open_checkpoint_at(const std::string& path);

  SourceKind kind_ = SourceKind::file;
  std::string path_;
  std::vector<SafetensorsFile> opened_;
  std::shared_ptr<const GgufFile> gguf_;  // in place of the members above
  std::vector<File> files_;
  std::map<std::string, Item, NaturalOrder> items_;
  nlohmann::json config_, details_;
  std::string problem_;
};

}  // namespace switchyard
