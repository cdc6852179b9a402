// 8-bit weights with one scale per block of 128 x 128 elements, the published form of DeepSeek-V3 and
// Kimi-K2: the tensor NAME is F8_E4M3 [rows,columns], NAME_scale_inv is [ceil(rows/128),ceil(columns/128)] of
// F32 (BF16 or F16 for Qwen3; F8_E8M0, or its exponents as U8, where scales are powers of two), and a weight
// is the product of the two.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/safetensors.h"

namespace switchyard {

inline constexpr std::int64_t kScaleBlock = 128;

// The name of the scales: "NAME_scale_inv".
std::string block_scale_name(const std::string& weight);

// True when two tensors have the types and shapes of such a pair.
bool is_block_scaled(const SafetensorsFile::Entry& weight, const SafetensorsFile::Entry& scale);

// Rows [begin, end) of the weights in `dtype`: products in float32, or rounded once to bfloat16. CHECKs that
// the tensors are such a pair and have those rows. A NaN stays a NaN.
Tensor block_scaled_rows(const SafetensorsFile::Entry& weight, const SafetensorsFile::Entry& scale,
                         std::int64_t begin, std::int64_t end, DType dtype);

// True when such a weight [out, in] is whole blocks of packed_fp8 (kernels/packed/packed_block.h).
bool holds_packed_fp8(const Shape& weight);
// The weight's blocks [in / 128, out / 16] (CHECKed to be whole), whose values are the products in float32;
// has_nan(weight) must be false.
Tensor block_scaled_blocks(const SafetensorsFile::Entry& weight, const SafetensorsFile::Entry& scale);
// The index, in the tensor of scales, of the first infinite or NaN scale for weight rows [begin, end).
std::optional<std::int64_t> infinite_scale(const SafetensorsFile::Entry& scale, std::int64_t begin,
                                           std::int64_t end);
bool has_nan(const SafetensorsFile::Entry& weight);

}  // namespace switchyard
