#include "kernels/cross_entropy.h"

#include "kernels/ref/cross_entropy_reference.h"

namespace switchyard {
void linear_cross_entropy(ThreadPool&, const LinearCrossEntropyArgs& a, float* lse, float* target_logit) {
  a.dtype == DType::f32 ? reference::linear_cross_entropy<float>(a, lse, target_logit)
                        : reference::linear_cross_entropy<bfloat16>(a, lse, target_logit);
}
void linear_cross_entropy_backward(ThreadPool&, const LinearCrossEntropyArgs& a, const float* lse,
                                   const float* softmax_coefficient, const float* target_coefficient, float* dhidden,
                                   float* dweight) {
  a.dtype == DType::f32 ? reference::linear_cross_entropy_backward<float>(a, lse, softmax_coefficient,
                                                                          target_coefficient, dhidden, dweight)
                        : reference::linear_cross_entropy_backward<bfloat16>(a, lse, softmax_coefficient,
                                                                             target_coefficient, dhidden, dweight);
}
}  // namespace switchyard
