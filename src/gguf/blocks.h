// The element types of GGUF files: blocks of values with a few bits per value.
//
// A row of a tensor is a whole number of blocks. The table "Blocks" in docs/design/gguf.md defines which bits
// of a block make which value; it was checked against llama.cpp's C code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/packed/packed_block.h"

namespace switchyard {

struct GgufType {
  std::uint32_t number;   // as stored in files
  std::string_view name;  // "Q4_0"
  std::int64_t values;    // values per block
  std::int64_t bytes;     // bytes per block
};

// The type with the number `number` in files; null for an unknown number.
const GgufType* gguf_type(std::uint32_t number);
// The type with this name.
const GgufType* gguf_type(std::string_view name);

// The name of a GGUF type that this reader does not support, such as "IQ2_XXS"; "" for other numbers.
std::string_view unread_gguf_type(std::uint32_t number);
// The names of the supported types, separated by commas.
std::string gguf_type_names();

// The index of the first block (of whole blocks, CHECKed) with a non-finite float16 scale (d, m, dmin).
std::optional<std::int64_t> block_of_infinite_scale(const GgufType& type, std::span<const std::byte> blocks);

// Converts whole blocks to float32, exactly as the format defines: products and sums are rounded to float32
// one after the other, scales first. `blocks` is a multiple of type.bytes; out.size() is the number of values
// in it (both CHECKed).
void dequantize(const GgufType& type, std::span<const std::byte> blocks, std::span<float> out);

// The packed type whose groups hold such blocks' values bit for bit; none when there is no such type.
std::optional<DType> packed_dtype_of(const GgufType& type);
// Group `group` of 32 values of a block of such a type (CHECKed). None for an MXFP4 block with the exponent
// 255, which packed weights cannot represent.
std::optional<PackedGroup> packed_group_of(const GgufType& type, const std::byte* block,
                                           std::int64_t group = 0);

}  // namespace switchyard
