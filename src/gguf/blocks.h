// The element types of GGUF files: blocks of a few bits a value.
//
// A row of a tensor is a whole number of blocks. Which bits of a block make which value: the table "Blocks"
// in docs/gguf.md, which was checked against the values that llama.cpp's C code gives.
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
  std::uint32_t number;   // in files
  std::string_view name;  // "Q4_0"
  std::int64_t values;    // of a block
  std::int64_t bytes;     // of a block
};

// The type that files call `number`; null for one that is not known here.
const GgufType* gguf_type(std::uint32_t number);
// The same by name.
const GgufType* gguf_type(std::string_view name);

// The name of a type that files may have and that is not read here, "IQ2_XXS"; "" for other numbers.
std::string_view unread_gguf_type(std::uint32_t number);
// The names of those that are read, with commas between.
std::string gguf_type_names();

// The first of whole blocks (CHECKed) that has a float16 scale (d, m, dmin) which is no finite number.
std::optional<std::int64_t> block_of_infinite_scale(const GgufType& type, std::span<const std::byte> blocks);

// The values of whole blocks as float32, exactly as the format defines them: products and sums are rounded to
// float32 one after the other, scales first. `blocks` is a multiple of type.bytes; out.size() is the number
// of values in it (both CHECKed).
void dequantize(const GgufType& type, std::span<const std::byte> blocks, std::span<float> out);

// The packed type whose groups can have the values of such blocks bit for bit; none for the others.
std::optional<DType> packed_dtype_of(const GgufType& type);
// Group `group` of 32 values of a block of such a type (CHECKed). None for a block of MXFP4 with the exponent
// 255, which stands for no number in packed weights.
std::optional<PackedGroup> packed_group_of(const GgufType& type, const std::byte* block,
                                           std::int64_t group = 0);

}  // namespace switchyard
