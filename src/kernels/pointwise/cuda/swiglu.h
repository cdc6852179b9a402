// swiglu of single numbers (elementwise.h), for every kernel that makes it: so all have the same bits.
#pragma once

#include "kernels/cuda/portable.h"

namespace switchyard::gpu {

GPU_FUNCTION float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// `weight`: of the row.
GPU_FUNCTION float swiglu_of(float gate, float up, float weight) {
  return gate * sigmoid(gate) * up * weight;
}

// Gradients of gate, up and the row's weight (its term of a sum over the columns) for that of hidden.
struct SwigluGradients {
  float gate, up, weight;
};
GPU_FUNCTION SwigluGradients swiglu_gradients(float gate, float up, float weight, float dhidden) {
  const float s = sigmoid(gate), silu = gate * s, slope = s * fmaf(gate, 1.0f - s, 1.0f);
  return {dhidden * weight * up * slope, dhidden * weight * silu, dhidden * silu * up};
}

}  // namespace switchyard::gpu
