// 4-bit weights of GPTQ as transformers' folders hold them: a matrix NAME.weight [out, in] is
//   NAME.qweight I32 [in / 8, out]: word r has the inputs 8 r .. 8 r + 7, lowest four bits first
//   NAME.scales F16 [in / g, out], one for each group of g inputs
//   NAME.qzeros I32 [in / g, out / 8], of the same four bits along the outputs
//   NAME.g_idx I32 [in], the group of each input; may be absent where it is input / g. With desc_act a group
//   may have any inputs.
// A weight is scale · (q - zero). Read are zeros of 8 and groups of a multiple of 32 inputs. The packed type
// int4 holds those whose groups are 32 neighbours or more each.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/safetensors.h"

namespace switchyard {

struct GptqWeight {
  SafetensorsFile::Entry numbers, scales, zeros, groups;  // groups: without a dtype where absent
  int stored_zero = 7;                                    // that stands for 8: one less, but for gptq_v2

  bool in_order = true;  // 32 inputs of a block are of one group

  std::int64_t inputs() const { return numbers.shape[0] * 8; }
  std::int64_t outputs() const { return numbers.shape[1]; }
  Shape shape() const { return {outputs(), inputs()}; }
};

// What is not as above, in words; empty where the weight can be read. Sets in_order.
std::string gptq_problem(GptqWeight& weight);

// The first scale of outputs [begin, end) that is no finite number, counted in the tensor of scales.
std::optional<std::int64_t> gptq_infinite_scale(const GptqWeight& weight, std::int64_t begin,
                                                std::int64_t end);

// Of a weight without a problem: rows [begin, end) of [out, in] in float32, each the rounded product.
Tensor gptq_rows(const GptqWeight& weight, std::int64_t begin, std::int64_t end);
// Whether it is whole blocks of packed_int4 (kernels/packed/packed_block.h), and those blocks [in / 32, out /
// 16], which have the same values.
bool is_whole_blocks(const GptqWeight& weight);
Tensor gptq_blocks(const GptqWeight& weight);

}  // namespace switchyard
