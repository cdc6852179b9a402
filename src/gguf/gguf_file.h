// Reads GGUF files: a model's metadata and tensors, in the format of llama.cpp and its tools.
//
// Layout, little endian: "GGUF", u32 version, u64 tensors, u64 metadata entries; the entries (key, u32 type,
// value); the tensors (name, u32 dims, u64 sizes with the fastest first, u32 type, u64 offset); then, from
// the next multiple of the alignment on, the tensors' blocks. The reader validates everything. It refuses,
// naming the file and the broken rule: another magic or version, counts or lengths past the end of the file,
// keys and names that are empty, too long or duplicate, unknown types, lists of lists, more than 4 dims,
// sizes that overflow or rows that are not whole blocks, an alignment that is no power of two, offsets that
// differ from the end of the tensor before (aligned), and data past the end of the file.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/mapped_file.h"
#include "core/tensor.h"
#include "gguf/blocks.h"

namespace switchyard {

class GgufFile {
 public:
  struct Entry {
    const GgufType* type = nullptr;
    Shape shape;                       // row-major: the fastest dim last, unlike in the file
    std::span<const std::byte> bytes;  // points into the file; lives as long as the GgufFile
    std::size_t part = 0;              // for a model in parts: index of the tensor's file in paths()
  };

  // True when the file begins as a GGUF file, or is a Git LFS pointer to one, which open() refuses with a
  // clear message; false when it cannot be read.
  static bool is_gguf(const std::string& path);
  // Maps the file read-only; given the first of a model's parts (NAME-00001-of-0000N.gguf), maps all parts.
  // Error(usage) naming the path and the broken rule, also for any other part.
  static GgufFile open(const std::string& path);
  // Parses a file's bytes, which are copied; `name` replaces the path in messages.
  static GgufFile parse(std::span<const std::byte> bytes, const std::string& name);

  const std::string& path() const { return path_; }
  std::uint32_t version() const { return version_; }  // of the file format: 2 or 3
  // The files of the model: several when it is in parts.
  const std::vector<std::string>& paths() const { return paths_; }
  const std::map<std::string, nlohmann::json>& metadata() const { return metadata_; }
  const std::map<std::string, Entry>& entries() const { return entries_; }
  const Entry& at(const std::string& name) const;  // Error(usage) for a missing name

  // Reads a whole tensor as float32. Error(usage) for a missing name.
  Tensor read(const std::string& name) const;
  // Rows [begin, end) (CHECKed) of the tensor seen as a matrix [rows, last dim].
  Tensor read_rows(const std::string& name, std::int64_t begin, std::int64_t end) const;
  // The blocks of these rows.
  std::span<const std::byte> row_bytes(const std::string& name, std::int64_t begin, std::int64_t end) const {
    return bytes_of(at(name), begin, end);
  }
  // Error(usage), naming the tensor and the block, when a block of these rows has a non-finite scale: the
  // file is broken, and the model would compute NaN.
  void check_scales(const std::string& name, std::int64_t begin, std::int64_t end) const;
  // Releases the memory that holds the pages of these rows.
  void release_rows(const std::string& name, std::int64_t begin, std::int64_t end) const;

 private:
  class Reader;

  GgufFile() = default;
  static GgufFile open_part(const std::string& path);
  void parse_all(std::span<const std::byte> file);
  void add_parts(std::int64_t count);
  static std::span<const std::byte> bytes_of(const Entry& entry, std::int64_t begin, std::int64_t end);

  std::string path_;
  std::vector<std::string> paths_;
  std::vector<std::shared_ptr<const void>> storage_;  // the mappings, or the copied bytes
  bool mapped_ = false;
  std::uint32_t version_ = 0;
  std::map<std::string, nlohmann::json> metadata_;
  std::map<std::string, Entry> entries_;
};

}  // namespace switchyard
