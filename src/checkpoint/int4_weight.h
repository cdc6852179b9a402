// Weights of 4 bits with a scale for each group of g inputs of an output, in two layouts of a matrix
// NAME.weight [out, in]. A word holds eight inputs, or outputs, the first in its lowest four bits.
//
// GPTQ in transformers' format:
//   NAME.qweight I32 [in / 8, out]: word r has the inputs 8 r .. 8 r + 7
//   NAME.scales [in / g, out]
//   NAME.qzeros I32 [in / g, out / 8]
//   NAME.g_idx I32 [in], the group of each input; may be absent when it is input / g. With desc_act a group
//   may have any inputs.
// compressed-tensors, format pack-quantized:
//   NAME.weight_packed I32 [out, in / 8], NAME.weight_scale [out, in / g], NAME.weight_shape I64 [2]: out,
//   in; NAME.weight_g_idx as g_idx
//
// A weight is scale · (q - zero). Supported are zeros of 8, groups of a multiple of 32 inputs (one group: a
// scale an output), and scales of F16 or BF16. The packed type int4 can hold weights whose groups are each at
// least 32 neighbouring inputs, and whose scales are float16.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/safetensors.h"

namespace switchyard {

struct Int4Weight {
  bool outputs_first = false;                             // compressed-tensors
  SafetensorsFile::Entry numbers, scales, zeros, groups;  // groups: has no dtype when absent
  SafetensorsFile::Entry stated_shape;                    // of compressed-tensors
  std::string name_of_numbers;                            // the tensor with the numbers
  int stored_zero = 7;                                    // stored for 8: one less, except in gptq_v2

  bool in_order = true;  // true when the 32 inputs of every block are in one group

  std::int64_t inputs() const { return numbers.shape[outputs_first ? 1 : 0] * 8; }
  std::int64_t outputs() const { return numbers.shape[outputs_first ? 0 : 1]; }
  std::int64_t groups_of_inputs() const { return scales.shape[outputs_first ? 1 : 0]; }
  Shape shape() const { return {outputs(), inputs()}; }
};

// The tensors that make a weight, by the ends of their names; the first has its numbers.
struct Int4Part {
  const char* ending;
  SafetensorsFile::Entry Int4Weight::*entry;
  bool optional = false;
};
inline constexpr Int4Part kGptqParts[] = {{".qweight", &Int4Weight::numbers},
                                          {".scales", &Int4Weight::scales},
                                          {".qzeros", &Int4Weight::zeros},
                                          {".g_idx", &Int4Weight::groups, true}};
inline constexpr Int4Part kCompressedParts[] = {{".weight_packed", &Int4Weight::numbers},
                                                {".weight_scale", &Int4Weight::scales},
                                                {".weight_shape", &Int4Weight::stated_shape},
                                                {".weight_g_idx", &Int4Weight::groups, true}};

// True for a quantization_config whose tensors have GPTQ's names and are no other method's: of GPTQ itself,
// of GPTQModel, and of AutoRound where it packs as GPTQ does.
bool is_gptq_form(const nlohmann::json& quantization);

// The field by which a quantization_config of compressed-tensors is not all in the format above; or empty.
std::string compressed_form_problem(const nlohmann::json& quantization);

// The difference from the format above, in words; empty when the weight can be
// read. Sets in_order.
std::string int4_problem(Int4Weight& weight);

// The group and the output of the first non-finite scale of outputs [begin, end).
struct ScalePlace {
  std::int64_t group, output;
};
std::optional<ScalePlace> infinite_scale(const Int4Weight& weight, std::int64_t begin, std::int64_t end);

// For a weight without a problem: rows [begin, end) of [out, in] in float32, each the rounded product.
Tensor int4_rows(const Int4Weight& weight, std::int64_t begin, std::int64_t end);
// True when the weight is whole blocks of packed_int4 (kernels/packed/packed_block.h), which takes a look at
// all scales of bfloat16. Below: those blocks
// [in / 32, out / 16], which have the same values.
bool is_whole_blocks(const Int4Weight& weight);
Tensor int4_blocks(const Int4Weight& weight);

}  // namespace switchyard
