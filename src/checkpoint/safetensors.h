// Reading and writing safetensors files.
//
// Layout: 8 bytes little-endian length of the header, the header (JSON: tensor name -> dtype, shape,
// data_offsets; and optionally "__metadata__" with string values), then the bytes of all tensors. The reader
// trusts nothing. It refuses, naming the file and the broken rule: a header over 100 MB or past the end of
// the file, JSON that is not exactly of that form, duplicate keys, an unknown dtype, a negative or
// overflowing shape, offsets that do not match shape x dtype, do not start at 0, overlap, leave holes or do
// not end at the end of the file.
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

// Bits of one element of a dtype as files name it ("F32"); 0 for one that is not of the format.
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
  // The same from memory, which is copied; `name` stands for the path in messages.
  static SafetensorsFile parse(std::span<const std::byte> bytes, const std::string& name);

  const std::map<std::string, Entry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }
  bool contains(const std::string& name) const { return entries_.contains(name); }

  // Lets go of the memory that holds a tensor's pages; they are read from disk again when touched. Whoever
  // goes through a large file once keeps the process small by it.
  void release(const std::string& name) const;
  // The same for the pages of rows [begin, end) of its first dimension.
  void release_rows(const std::string& name, std::int64_t begin, std::int64_t end) const;

  // A copy of one tensor. F32, BF16, I32 and U8 (also BOOL) keep their type; F16 and F64 become f32; I64, U32
  // and U16 become i32, and a value that does not fit is an Error(usage). Other dtypes and missing names are
  // Error(usage).
  Tensor read(const std::string& name) const;
  // Rows [begin, end) of its first dimension (CHECKed), the whole of a tensor without dimensions.
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

// "F32", "BF16", "I32", "U8".
std::string safetensors_dtype(DType dtype);
// What a file says of a tensor's shape: a packed type's elements are rows of bytes, so the last dim is the
// bytes of a block.
Shape safetensors_shape(DType dtype, const Shape& shape);

// A file to be written: its header, and where each tensor's bytes go.
struct SafetensorsItem {
  std::string name;
  DType dtype;
  Shape shape;
};
struct SafetensorsLayout {
  std::string header;                 // the file's first bytes: length and JSON, a multiple of 64 bytes
  std::vector<std::int64_t> offsets;  // of each item, from the file's begin
  std::vector<std::size_t> order;     // items by offset: wide types first, so that every element is aligned
  std::int64_t bytes = 0;             // of the file
};
SafetensorsLayout safetensors_layout(std::span<const SafetensorsItem> items,
                                     const std::map<std::string, std::string>& metadata);

// Writes f32, bf16, i32, u8 and packed tensors, sorted by name, and reads nothing back. The file appears
// under `path` complete or not at all: it is written beside it, flushed to disk, and renamed. Throws
// Error(runtime) on failure and leaves no temporary file.
void write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

struct GptqWeight;
struct Mxfp4Stack;

// The weights of a Hugging Face folder: model.safetensors, or the shards of model.safetensors.index.json. A
// path to one .safetensors file is taken as it is. Every tensor of the index must be in its shard and every
// tensor of a shard in the index. 8-bit weights with scales beside them (checkpoint/block_scaled.h) are
// bfloat16 tensors here (float32 by take_values), and their scales are no tensors; 4-bit weights of GPTQ
// (checkpoint/gptq.h) are one float32 tensor NAME.weight each. Error(usage) otherwise.
class WeightFolder : public HubWeights {
 public:
  static WeightFolder open(const std::string& folder);
  // The weights of one file. Error(usage) as open's.
  static WeightFolder of(SafetensorsFile file);

  const std::string& path() const override { return path_; }
  std::vector<std::string> names() const override;
  bool contains(const std::string& name) const override { return shard_of_.contains(name); }
  Shape shape(const std::string& name) const override;
  std::string dtype(const std::string& name) const override;  // as in the file
  Tensor read(const std::string& name) const override;        // as SafetensorsFile::read
  Tensor take_rows(const std::string& name, std::int64_t begin, std::int64_t end) const override;
  Tensor take_values(const std::string& name, std::int64_t begin, std::int64_t end) const override;
  // fp8 of 8-bit weights with scales, int4 of those of GPTQ.
  std::optional<DType> packed_dtype(const std::string& name) const override;
  Tensor take_blocks(const std::string& name) const override;
  // Whether it is one of those two: stored in fewer bits than its values have.
  bool is_quantized(const std::string& name) const {
    return gptq_.contains(name) || scale_shard_of_.contains(name) || mxfp4_.contains(name);
  }
  // mxfp4 of stacks that are NAME_blocks and NAME_scales in the file.
  std::optional<DType> packed_stack_dtype(const std::string& name) const override;
  Tensor take_stack_blocks(const std::string& name, const StackRows& rows) const override;
  const std::vector<SafetensorsFile>& files() const { return shards_; }

 private:
  const SafetensorsFile& shard(const std::string& name) const;
  const SafetensorsFile::Entry& entry(const std::string& name) const;
  const SafetensorsFile::Entry& scales_of(const std::string& weight) const;  // of one in scale_shard_of_
  Tensor rows_of(const std::string& name, std::int64_t begin, std::int64_t end, DType scaled) const;
  void add(SafetensorsFile only);  // the one file there is
  void set_scales_apart();
  void join_gptq();
  void join_mxfp4();

  std::string path_;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, std::size_t> shard_of_;
  std::map<std::string, std::size_t> scale_shard_of_;  // of the weight's name: where its scales are
  std::map<std::string, std::shared_ptr<const GptqWeight>> gptq_;
  std::map<std::string, std::shared_ptr<const Mxfp4Stack>> mxfp4_;  // by the name of the stack
};

}  // namespace switchyard
