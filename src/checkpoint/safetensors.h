// Reads and writes safetensors files.
//
// Layout: 8 bytes little-endian length of the header, the header (JSON: tensor name -> dtype, shape,
// data_offsets; and optionally "__metadata__" with string values), then the bytes of all tensors. The reader
// validates everything. It refuses, naming the file and the broken rule: a header over 100 MB or past the end
// of the file, JSON of any other form, duplicate keys, an unknown dtype, a negative or overflowing shape,
// offsets that do not match shape x dtype, do not start at 0, overlap, leave holes or do not end at the end
// of the file.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/hub_weights.h"
#include "core/tensor.h"

namespace switchyard {

// Bits per element of a dtype in the format's notation ("F32"); 0 for an unknown dtype.
std::size_t safetensors_element_bits(const std::string& dtype);

class SafetensorsFile {
 public:
  struct Entry {
    std::string dtype;  // as in the file: "F32", "BF16", ...
    Shape shape;
    std::span<const std::byte> bytes;  // points into the mapped file; lives as long as the SafetensorsFile
  };

  // Maps the file read-only. Throws Error(usage) naming path and the broken rule.
  static SafetensorsFile open(const std::string& path);
  // Parses a file's bytes, which are copied; `name` replaces the path in messages.
  static SafetensorsFile parse(std::span<const std::byte> bytes, const std::string& name);

  const std::map<std::string, Entry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }
  bool contains(const std::string& name) const { return entries_.contains(name); }

  // Releases the memory that holds a tensor's pages; they are read from disk again when touched. This keeps
  // the process small while it goes through a large file once.
  void release(const std::string& name) const;
  // Releases the pages of rows [begin, end) of the first dimension.
  void release_rows(const std::string& name, std::int64_t begin, std::int64_t end) const;

  // A copy of one tensor. F32, BF16, I32 and U8 (also BOOL) keep their type; F16 and F64 become f32; I64, U32
  // and U16 become i32, and a value that does not fit is Error(usage). Other dtypes
  // and missing names are Error(usage).
  Tensor read(const std::string& name) const;
  // Rows [begin, end) of the first dimension (CHECKed); the whole tensor if it has no dimensions.
  Tensor read_rows(const std::string& name, std::int64_t begin, std::int64_t end) const;

 private:
  SafetensorsFile() = default;
  Entry rows_of(const std::string& name, std::int64_t begin, std::int64_t end) const;
  Tensor read_entry(const Entry& entry, const std::string& name) const;
  void parse_all(std::span<const std::byte> file);

  std::string path_;
  std::shared_ptr<const void> storage_;  // the mapping, or the copied bytes
  bool mapped_ = false;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

// The name of a dtype in files: "F32", "BF16", "I32", "U8".
std::string safetensors_dtype(DType dtype);
// A tensor's shape in a file: elements of a packed type are stored as rows of bytes, so the last dim is the
// size of a block in bytes.
Shape safetensors_shape(DType dtype, const Shape& shape);

// A file to be written: its header, and the offset of each tensor's bytes.
struct SafetensorsItem {
  std::string name;
  DType dtype;
  Shape shape;
};
struct SafetensorsLayout {
  std::string header;                 // the file's first bytes: length and JSON, a multiple of 64 bytes
  std::vector<std::int64_t> offsets;  // per item, from the start of the file
  std::vector<std::size_t> order;     // items by offset: wide types first, which aligns every element
  std::int64_t bytes = 0;             // size of the file
};
SafetensorsLayout safetensors_layout(std::span<const SafetensorsItem> items,
                                     const std::map<std::string, std::string>& metadata);

// Writes f32, bf16, i32, u8 and packed tensors, sorted by name. The file appears under `path` complete or not
// at all: it is written to a temporary file, flushed to disk, and renamed. Throws Error(runtime) on failure
// and leaves no temporary file.
void write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

struct Int4Part;
struct Int4Weight;
struct Mxfp4Stack;

// The weights of a Hugging Face folder: model.safetensors, or the shards of model.safetensors.index.json. A
// path to a single .safetensors file is accepted too. Every tensor of the index must be in its shard and
// every tensor of a shard in the index; otherwise Error(usage). 8-bit weights with scales
// (checkpoint/block_scaled.h) appear as bfloat16 tensors (float32 by take_values), without their scales;
// 4-bit weights of GPTQ and of compressed-tensors (checkpoint/int4_weight.h) appear as
// NAME.weight in float32.
class WeightFolder : public HubWeights {
 public:
  static WeightFolder open(const std::string& folder);
  // The weights of a single file. Error(usage) as for open.
  static WeightFolder of(SafetensorsFile file);

  const std::string& path() const override { return path_; }
  std::vector<std::string> names() const override;
  bool contains(const std::string& name) const override { return shard_of_.contains(name); }
  Shape shape(const std::string& name) const override;
  std::string dtype(const std::string& name) const override;  // as in the file
  Tensor read(const std::string& name) const override;        // as SafetensorsFile::read
  Tensor take_rows(const std::string& name, std::int64_t begin, std::int64_t end) const override;
  Tensor take_values(const std::string& name, std::int64_t begin, std::int64_t end) const override;
  // fp8 for 8-bit weights with scales, int4 for those of 4 bits.
  std::optional<DType> packed_dtype(const std::string& name) const override;
  Tensor take_blocks(const std::string& name) const override;
  // True for these: the weight is stored in fewer bits than its values have.
  bool is_quantized(const std::string& name) const {
    return int4_.contains(name) || scale_shard_of_.contains(name) || mxfp4_.contains(name);
  }
  // mxfp4 for stacks stored as NAME_blocks and NAME_scales.
  std::optional<DType> packed_stack_dtype(const std::string& name) const override;
  Tensor take_stack_blocks(const std::string& name, const StackRows& rows) const override;
  const std::vector<SafetensorsFile>& files() const { return shards_; }

 private:
  const SafetensorsFile& shard(const std::string& name) const;
  const SafetensorsFile::Entry& entry(const std::string& name) const;
  const SafetensorsFile::Entry& scales_of(const std::string& weight) const;  // of a key of scale_shard_of_
  Tensor rows_of(const std::string& name, std::int64_t begin, std::int64_t end, DType scaled) const;
  void add(SafetensorsFile only);  // the only file
  void set_scales_apart();
  std::vector<std::string> modules_with(std::string_view ending) const;
  void join_int4(const std::string& module, Int4Weight weight, std::span<const Int4Part> parts);
  void join_all_int4();
  void join_mxfp4();

  std::string path_;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, std::size_t> shard_of_;
  std::map<std::string, std::size_t> scale_shard_of_;  // weight's name -> shard with its scales
  std::map<std::string, std::shared_ptr<const Int4Weight>> int4_;
  std::map<std::string, std::shared_ptr<const Mxfp4Stack>> mxfp4_;  // by the stack's name
};

}  // namespace switchyard
