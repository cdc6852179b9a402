// Attention of bfloat16 on tensor cores. The twin for every dtype and width is in attention.cu.
#pragma once

#include "kernels/attention/attention_problem.h"

namespace switchyard::gpu {

// Whether the two functions take a problem: bfloat16, widths that are multiples of 8 up to 192 (values: 128).
bool flash_attention_takes(const AttentionProblem& problem);

// As attention() and attention_backward() of kernels.h. They work in memory like that of `like`.
void flash_attention(const AttentionProblem& problem, const TensorView& like);
void flash_attention_backward(const AttentionProblem& problem, const TensorView& like);

}  // namespace switchyard::gpu
