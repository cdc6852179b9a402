// 4-bit weights of GPTQ in transformers' format: a matrix NAME.weight [out, in] is stored as
//   NAME.qweight I32 [in / 8, out]: word r has the inputs 8 r .. 8 r + 7, lowest four bits first
//   NAME.scales F16 or BF16 [in / g, out], one for each group of g inputs
//   NAME.qzeros I32 [in / g, out / 8], four-bit numbers packed likewise along the outputs
//   NAME.g_idx I32 [in], the group of each input; may be absent when it is input / g. With desc_act a group
//   may have any inputs.
// A weight is scale · (q - zero). Supported are zeros of 8 and groups of a multiple of 32 inputs. The packed
// type int4 can hold weights whose groups are each at least 32 neighbouring inputs,
// and whose scales are float16.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "checkpoint/safetensors.h"

namespace switchyard {

struct GptqWeight {
  SafetensorsFile::Entry numbers, scales, zeros, groups;  // groups: has no dtype when absent
  int stored_zero = 7;                                    // stored for 8: one less, except in gptq_v2

  bool in_order = true;     // true when the 32 inputs of every block are in one group
  bool half_scales = true;  // true when every scale is a float16

  std::int64_t inputs() const { return numbers.shape[0] * 8; }
  std::int64_t outputs() const { return numbers.shape[1]; }
  Shape shape() const { return {outputs(), inputs()}; }
};

// True for a quantization_config whose tensors have GPTQ's names and are no other method's: of GPTQ itself,
// of GPTQModel, and of AutoRound where it packs as GPTQ does.
bool is_gptq_form(const nlohmann::json& quantization);

// The difference from the format above, in words; empty when the weight can be
// read. Sets in_order and half_scales.
std::string gptq_problem(GptqWeight& weight);

// The index, in the tensor of scales, of the first non-finite scale of outputs [begin, end).
std::optional<std::int64_t> gptq_infinite_scale(const GptqWeight& weight, std::int64_t begin,
                                                std::int64_t end);

// For a weight without a problem: rows [begin, end) of [out, in] in float32, each the rounded product.
Tensor gptq_rows(const GptqWeight& weight, std::int64_t begin, std::int64_t end);
// True when the weight is whole blocks of packed_int4 (kernels/packed/packed_block.h). Below: those blocks
// [in / 32, out / 16], which have the same values.
bool is_whole_blocks(const GptqWeight& weight);
Tensor gptq_blocks(const GptqWeight& weight);

}  // namespace switchyard
